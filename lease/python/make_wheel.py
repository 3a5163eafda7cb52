#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the wheel of package gpuslice, with Python's standard library alone: the same source gives the same bytes.

    make_wheel.py DIRECTORY [VERSION]      # without VERSION that of the commit, as test/version.sh says it

It is also the backend that pyproject.toml names.
"""
import base64
import hashlib
import os
import re
import subprocess
import sys
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
METADATA = """Metadata-Version: 2.1
Name: gpuslice
Version: {version}
Summary: Leases of a slice of a GPU: memory, modules and launches over a socket, without a driver or CUDA
Home-page: https://github.com/gpuslice/gpuslice
License: Apache-2.0
Requires-Python: >=3.9
Requires-Dist: grpcio >=1.51
Requires-Dist: protobuf >=3.20
Provides-Extra: numpy
Requires-Dist: numpy; extra == "numpy"
"""
WHEEL = "Wheel-Version: 1.0\nGenerator: gpuslice\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def public(version):
    """The version as Python has it: 0.1.0-dev+gabc is 0.1.0.dev0+gabc, and 0.1.0-rc1 is 0.1.0rc1."""
    version = version.replace("-dev", ".dev0").replace("-rc", "rc")
    if not re.fullmatch(r"\d+(\.\d+)*((a|b|rc)\d+)?(\.dev\d+)?(\+[a-z0-9.]+)?", version):
        sys.exit(f"make_wheel.py: {version!r} is no version of a Python package: one such as 0.1.0 or 0.1.0-dev+g1234 is accepted")
    return version


def make(directory, version):
    """Writes the wheel, and returns its name."""
    info = f"gpuslice-{version}.dist-info"
    files = {}
    for name in sorted(os.listdir(os.path.join(HERE, "gpuslice"))):
        if name.endswith((".py", ".typed")):
            with open(os.path.join(HERE, "gpuslice", name), "rb") as file:
                files["gpuslice/" + name] = file.read()
    with open(os.path.join(HERE, "../../LICENSE"), "rb") as file:
        files[info + "/LICENSE"] = file.read()
    files[info + "/METADATA"] = METADATA.format(version=version).encode()
    files[info + "/WHEEL"] = WHEEL.encode()
    record = "".join(f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
                     for name, data in files.items())
    files[info + "/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    name = f"gpuslice-{version}-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(directory, name), "w") as wheel:  # stored: versions of zlib compress differently
        for path, data in files.items():
            entry = zipfile.ZipInfo(path)  # of 1980
            entry.external_attr = 0o100644 << 16
            wheel.writestr(entry, data)
    return name


def source_version():
    return public(subprocess.run([HERE + "/../../test/version.sh"], stdout=subprocess.PIPE, check=True, text=True).stdout.strip())


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """What pip calls."""
    return make(wheel_directory, source_version())


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 3:
        sys.exit("usage: make_wheel.py DIRECTORY [VERSION]")
    os.makedirs(sys.argv[1], exist_ok=True)
    print(os.path.join(sys.argv[1], make(sys.argv[1], public(sys.argv[2]) if len(sys.argv) == 3 else source_version())))
