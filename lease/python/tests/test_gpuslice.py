# SPDX-License-Identifier: Apache-2.0
"""Tests of package gpuslice that need no lease service; test/e2e has those that do."""
import array
import ast
import ctypes
import datetime
import glob
import os
import pickle
import struct
import sys
import tempfile
import unittest
import zipfile
from concurrent import futures

import grpc

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
import gpuslice
import make_wheel
from gpuslice import _service, _session, _wire, errors


class Scalars(unittest.TestCase):
    def test_a_scalar_has_an_explicit_type(self):
        cases = [(1, "=i"), (-1, "=i"), (2**31 - 1, "=i"), (2**32 - 1, "=I"), (1.5, "=f"), (True, "=?")]
        for value, kind in cases:
            self.assertEqual(_session._scalar("it", value), struct.pack(kind, value), value)
        for value, bits in ((ctypes.c_int64(-2), struct.pack("=q", -2)), (ctypes.c_double(0.1), struct.pack("=d", 0.1)), (b"abc", b"abc"),
                            ((ctypes.c_int16 * 2)(1, 2), struct.pack("=2h", 1, 2)), (ctypes.c_void_p(0), bytes(8))):
            self.assertEqual(_session._scalar("it", value), bits)

    def test_a_scalar_of_numpy_has_its_own_type(self):
        if _session.numpy is None:
            self.skipTest("needs numpy")
        for value in (_session.numpy.int64(-2), _session.numpy.float64(0.1), _session.numpy.uint8(255), _session.numpy.bool_(True)):
            self.assertEqual(_session._scalar("it", value), value.tobytes())

    def test_a_number_that_does_not_fit_is_refused_with_what_to_do(self):
        for value in (2**32, -2**31 - 1):
            with self.assertRaisesRegex(OverflowError, f"argument 1 of k is {value}, which does not fit 32 bits.*ctypes.c_int64"):
                _session._scalar("argument 1 of k", value)
        with self.assertRaisesRegex(OverflowError, "does not fit a C float"):
            _session._scalar("it", 1e300)
        for value in ("2", None, [1], object()):
            with self.assertRaisesRegex(TypeError, f"it is a {type(value).__name__}"):
                _session._scalar("it", value)


class Data(unittest.TestCase):
    def test_host_data_is_bytes_with_a_shape_and_a_type(self):
        pairs = (ctypes.c_float * 3)(1, 2, 3)
        for data, dtype, shape, size in ((array.array("d", [1, 2]), None, (2,), 16), (b"abc", None, (3,), 3), ([1, 2, 3], "f", (3,), 12),
                                         (pairs, None, (3,), 12), (memoryview(bytes(range(8)))[::2], None, (4,), 4)):
            view, got, kind = _session._host(data, dtype)
            self.assertEqual((got, view.nbytes, view.format), (shape, size, "B"))
        self.assertEqual(bytes(view), b"\0\2\4\6")
        if _session.numpy is None:
            self.assertRaisesRegex(TypeError, "without NumPy", _session._host, b"abc", "f")
        else:
            numpy = _session.numpy
            for data, nbytes in ((numpy.zeros((3, 4), "f2").T, 24), (numpy.float32(1), 4), (numpy.zeros(2, "M8[s]"), 16)):
                view, shape, kind = _session._host(data, None)
                self.assertEqual((shape, view.nbytes), (numpy.shape(data), nbytes))
            self.assertRaises(TypeError, _session._host, [object()], None)


class Words(unittest.TestCase):
    def test_sizes_are_those_of_the_command_line(self):
        for text, want in {"7G": 7 << 30, "64MiB": 64 << 20, "64 m": None, "1.5k": 1536, "4096": 4096, "10b": 10, "1.3": None, "": None, "-1": None, "7GG": None}.items():
            if want is None:
                self.assertRaises(ValueError, _service.size, text)
            else:
                self.assertEqual(_service.size(text), want)
        self.assertEqual(_service.size(5), 5)

    def test_durations_are_those_of_the_command_line(self):
        for text, want in {"90s": 90, "1h30m": 5400, "7d": 604800, "1.5h": 5400, "500ms": 0.5, "h": None, "5": None, "1h 3m": None, "": None}.items():
            if want is None:
                self.assertRaises(ValueError, _service.seconds, text)
            else:
                self.assertEqual(_service.seconds(text), want)
        self.assertEqual(_service.seconds(datetime.timedelta(minutes=2)), 120)
        self.assertEqual(_service._duration(1.25), {"seconds": 1, "nanos": 250000000})

    def test_addresses(self):
        for text in ("gpu1:9837", "tls:gpu1", "tls:gpu1:http", "tls:gpu1:9837/a b", "tls:a?b:1", ""):
            self.assertRaises(ValueError, _service.connect, text, _service.TLS("a", "b", "c"))
        with self.assertRaisesRegex(ValueError, "all three files"):
            gpuslice.Service("tls:gpu1:9837").list()
        with self.assertRaisesRegex(ValueError, "names a lease"):
            gpuslice.Service("tls:gpu1:9837/l", certificate=__file__, key=__file__, ca=__file__).list()
        with self.assertRaisesRegex(ValueError, "names no lease"):
            gpuslice.open("tls:gpu1:9837", "token", certificate=__file__, key=__file__, ca=__file__)

    def test_grids_and_blocks(self):
        self.assertEqual(_session._dim("grid", 3), {"x": 3})
        self.assertEqual(_session._dim("block", (3, 2, 1)), {"x": 3, "y": 2, "z": 1})
        for sizes in (0, -1, (), (1, 2, 3, 4), 1 << 32):
            self.assertRaises(ValueError, _session._dim, "grid", sizes)
        self.assertRaises(TypeError, _session._dim, "grid", 1.0)
        self.assertRaises(TypeError, lambda: _session.Kernel(None, "k")[1])


class Codes(unittest.TestCase):
    """Against a service that fails with one code after the other."""

    def test_each_code_is_an_exception_with_what_the_service_said(self):
        values = {v.name: v.number for v in _wire._pool.FindEnumTypeByName("gpuslice.lease.v1.Code").values if v.number}
        self.assertEqual(set(values), set(errors.BY_CODE))
        number = [0]

        def drop(request, context):
            failure = _wire.Failure(code=number[0], message="no", advice="do", log="log", lost=True)
            if number[0] == values["ALLOC_FAILED"]:
                failure.requested, failure.limit, failure.current = 3, 2, 0
            status = _wire._Status()
            detail = status.details.add()
            detail.type_url, detail.value = "type.googleapis.com/gpuslice.lease.v1.Failure", failure.SerializeToString()
            context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no")

        with tempfile.TemporaryDirectory() as directory, futures.ThreadPoolExecutor(1) as pool:
            server = grpc.server(pool)
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("gpuslice.lease.v1.Leases", {
                "Drop": grpc.unary_unary_rpc_method_handler(drop, _wire.DropRequest.FromString, _wire.Lease.SerializeToString)}),))
            server.add_insecure_port(f"unix:{directory}/leases.sock")
            server.start()
            service = gpuslice.Service(f"unix:{directory}/leases.sock")
            for name, number[0] in [*values.items(), ("99", 99)]:
                with self.assertRaises(gpuslice.Error) as raised:
                    service.drop("lease-1")
                for error in (raised.exception, pickle.loads(pickle.dumps(raised.exception))):
                    self.assertIs(type(error), errors.BY_CODE.get(name, gpuslice.Error))
                    self.assertEqual((error.code, error.message, error.log, error.lost, str(error)), (name, "no", "log", True, f"{name}: no (do)"))
                    figures = (3, 2, 0) if name == "ALLOC_FAILED" else (None, None, None)
                    self.assertEqual((error.requested, error.limit, error.used), figures)
            server.stop(None).wait()


class Wheels(unittest.TestCase):
    def test_a_wheel_has_the_package_and_is_always_the_same(self):
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
            name = make_wheel.make(one, "0.1.0")
            make_wheel.make(two, "0.1.0")
            with open(os.path.join(one, name), "rb") as a, open(os.path.join(two, name), "rb") as b:
                self.assertEqual(a.read(), b.read())
            with zipfile.ZipFile(os.path.join(one, name)) as wheel:
                self.assertLessEqual({"gpuslice/__init__.py", "gpuslice/py.typed", "gpuslice-0.1.0.dist-info/RECORD"}, set(wheel.namelist()))

    def test_versions(self):
        for version, want in {"0.1.0": "0.1.0", "0.1.0-dev+g12ab": "0.1.0.dev0+g12ab", "0.2.0-rc1": "0.2.0rc1", "0.1.0-dev": "0.1.0.dev0"}.items():
            self.assertEqual(make_wheel.public(version), want)
        self.assertRaises(SystemExit, make_wheel.public, "latest")

    def test_the_source_is_of_python_3_9(self):
        for path in glob.glob(os.path.dirname(HERE) + "/gpuslice/*.py"):
            with open(path, encoding="utf-8") as file:
                ast.parse(file.read(), path, feature_version=(3, 9))


if __name__ == "__main__":
    unittest.main()
