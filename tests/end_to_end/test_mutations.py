import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = float(os.environ.get("CYCTR_MUTATION_SECONDS", "30"))


@pytest.mark.slow
def test_no_damaged_file_is_a_traceback_a_hang_or_a_loss():
    script = Path(__file__).with_name("mutations.py")
    command = [sys.executable, script, "--seconds", str(SECONDS), "--seed", os.environ.get("CYCTR_MUTATION_SEED", "0")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS + 600)
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout)
    assert report["problems"] == []
    assert report["inputs"] > 0 and report["peak"] < 2**31
