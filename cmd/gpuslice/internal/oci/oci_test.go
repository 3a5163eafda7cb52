// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"strings"
	"testing"
)

func TestRuntimeCommandLinesGoToTheRuntimeAndOthersStay(t *testing.T) {
	for line, want := range map[string]bool{
		// what containerd's shim says
		"--root /run/containerd/runc/default --log l.json --log-format json create --bundle /b --pid-file p id": true,
		"--root /run/runc delete --force id": true,
		"--log=l.json start id":              true,
		"--systemd-cgroup run id":            true,
		"--root /r ps --format json id":      true,
		// the verbs alone
		"create --bundle . id": true,
		"state id":             true,
		"features":             true,
		"kill id KILL":         true,
		// verbs of both
		"run --bundle /b id":                        true,
		"run -d id":                                 true,
		"run --vram 4G -- python train.py":          false,
		"run --vram=4G -- x --bundle y":             false,
		"run --quiet --vram 4G -- runc run -b /b x": false,
		"run":                         false,
		"run --help":                  false,
		"ps":                          false,
		"ps --json":                   false,
		"ps --no-trunc":               false,
		"ps id":                       false,
		"ps -f json id":               true,
		"events --stats id":           true,
		"events --interval 5s id":     true,
		"--root /r events id":         true,
		"events":                      false,
		"events -f":                   false,
		"events id":                   false,
		"events --since 5m --json id": false,
		"--socket /s ps":              false,
		"--socket=/s ps":              false,
		"--socket create ps":          false,
		"inspect create":              false,
		"doctor":                      false,
		"version":                     false,
		"--version":                   false,
		"--help":                      false,
		"help run":                    false,
		"":                            false,
		"--":                          false,
	} {
		if got := ForRuntime(strings.Fields(line)); got != want {
			t.Errorf("gpuslice %s: for the runtime %v, want %v", line, got, want)
		}
	}
}
