// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"strings"
	"testing"
)

func TestRuntimeCommandLinesGoToTheRuntimeAndOthersStay(t *testing.T) {
	for line, want := range map[string]bool{
		// by containerd's shim
		"--root /run/containerd/runc/default --log l.json --log-format json create --bundle /b --pid-file p id": true,
		"--root /run/runc delete --force id": true,
		"--log=l.json start id":              true,
		"--systemd-cgroup run id":            true,
		"--root /r ps --format json id":      true,
		"--root /r resume id":                true,
		"features":                           true,
		// by a person: a runtime's verb is not sufficient
		"create --bundle . id":             false,
		"state id":                         false,
		"kill id KILL":                     false,
		"list":                             false,
		"spec":                             false,
		"update id":                        false,
		"resume id":                        false,
		"features x":                       false,
		"run --bundle /b id":               false,
		"run -d id":                        false,
		"run --vram 4G -- python train.py": false,
		"run --vram=4G -- x --bundle y":    false,
		"run --quiet --vram 4G -- runc run -b /b x": false,
		"--session-socket --root ps":                false,
		"run":                                       false,
		"run --help":                                false,
		"ps":                                        false,
		"ps --json":                                 false,
		"ps --format json":                          false,
		"ps --no-trunc":                             false,
		"ps id":                                     false,
		"ps -f json id":                             false,
		"events --stats id":                         false,
		"events --interval 5s id":                   false,
		"--root /r events id":                       true,
		"events":                                    false,
		"events -f":                                 false,
		"events id":                                 false,
		"events --since 5m --json id":               false,
		"--socket /s ps":                            false,
		"--socket=/s ps":                            false,
		"--socket create ps":                        false,
		"inspect create":                            false,
		"doctor":                                    false,
		"version":                                   false,
		"--version":                                 false,
		"--help":                                    false,
		"help run":                                  false,
		"":                                          false,
		"--":                                        false,
	} {
		if got := ForRuntime(strings.Fields(line)); got != want {
			t.Errorf("gpuslice %s: for the runtime %v, want %v", line, got, want)
		}
	}
}
