import subprocess
import sys

CODE = """
import sys, threading
from cyctr import compat
sys.setswitchinterval(1e-6)
found, errors = [], []
def first():
    try:
        found.append(compat.transforms())
    except BaseException as error:
        errors.append(error)
threads = [threading.Thread(target=first) for _ in range(6)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(len(set(map(id, found))), errors)
"""


def test_threads_may_all_be_the_first_to_ask_for_torchvision():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1 []"
