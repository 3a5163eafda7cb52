// SPDX-License-Identifier: Apache-2.0

package lease_test

import (
	"os/exec"
	"testing"
)

func TestThePackageInPythonPassesItsOwnTests(t *testing.T) {
	const python = "/usr/bin/python3"
	if err := exec.Command(python, "-c", "import grpc, google.protobuf").Run(); err != nil {
		t.Skip("needs grpcio and protobuf for /usr/bin/python3")
	}
	for how, begin := range map[string]string{"with numpy, if it is there": "", "without numpy": "sys.modules['numpy'] = None;"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			program := "import sys, unittest;" + begin + "unittest.main(module=None, argv=['', 'discover', '-s', '../../lease/python/tests'])"
			if out, err := exec.Command(python, "-B", "-c", program).CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
