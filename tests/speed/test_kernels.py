import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

TRITON = importlib.util.find_spec("triton") is not None
NUMPY = np.lib.NumpyVersion(np.__version__) < "2.4.0"


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels themselves are tested, in test_cuda.py")
@pytest.mark.skipif(not (TRITON and NUMPY), reason="needs triton, and a numpy that its interpreter knows")
def test_the_kernels_compute_what_their_twins_do():
    """Without a GPU, by Triton's interpreter: in a process of its own, which must know of it before it imports Triton."""
    script = Path(__file__).with_name("kernel_checks.py")
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
