// SPDX-License-Identifier: Apache-2.0

package lease_test

import (
	"os/exec"
	"testing"
)

func TestAModulesVariablesAreArraysInPython(t *testing.T) {
	const python = "/usr/bin/python3"
	if err := exec.Command(python, "-c", "import grpc, google.protobuf").Run(); err != nil {
		t.Skip("needs grpcio and protobuf for /usr/bin/python3")
	}
	for how, begin := range map[string]string{"with numpy, if it is there": "", "without numpy": "sys.modules['numpy'] = None"} {
		t.Run(how, func(t *testing.T) {
			b := startBroker(t)
			command := exec.Command(python, "-B", "-c", "import sys\n"+begin+`
sys.path.insert(0, "python")
import array, gc, gpuslice
with gpuslice.open(sys.argv[1], sys.argv[2]) as gpu:
    assert gpu.compute_capability >= (5, 0), gpu.compute_capability
    m, data = gpu.module(sys.argv[3]), gpu.array(array.array("f", [3]))
    factor, count = m.variable("factor"), m.variable("count", "I", (2, 2))
    m.scale[1, 1](data)
    factor.set(array.array("f", [10]))
    m.scale[1, 1](data)
    assert data.get().tolist() == [60] and factor.get().tolist() == [10], (data.get(), factor.get())
    assert count.shape == (2, 2) and count.get().tolist() == [[0, 0], [0, 0]], count.get()
    for call, kind in (lambda: m.variable("none"), gpuslice.NotFound), (lambda: m.variable("count", "I", 3), ValueError):
        try:
            call()
            raise SystemExit("no failure")
        except kind as e:
            print(e)
    count.free()
    assert m.variable("count").get().tolist() == [0] * 4
    del count, m
    gc.collect()
    assert factor.get().tolist() == [10], "it keeps its module"
    assert gpu.stats()["buffers"] == 1 and gpu.stats()["peak"] == 4, gpu.stats()
    del factor
    gc.collect()
    gpu.sync()
    assert gpu.stats()["modules"] == 0, gpu.stats()
`, b.address, b.tokenFile, variables)
			if out, err := command.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
