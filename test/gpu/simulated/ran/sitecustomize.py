# SPDX-License-Identifier: Apache-2.0
"""Records which programs of test/gpu Python opens, beside the simulated driver's state: all.sh fails if one is left out."""
import os
import sys

_PROGRAMS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_RAN = os.path.join(os.path.dirname(os.environ["FAKECUDA_STATE"]), "ran")


def _record(event, arguments):
    if event == "open" and isinstance(arguments[0], str) and arguments[0].endswith(".py"):
        directory, name = os.path.split(os.path.abspath(arguments[0]))
        if directory == _PROGRAMS and not os.path.exists(f"{_RAN}/{name}"):
            os.close(os.open(f"{_RAN}/{name}", os.O_CREAT | os.O_WRONLY, 0o666))


sys.addaudithook(_record)
