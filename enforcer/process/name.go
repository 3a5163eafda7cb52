// SPDX-License-Identifier: Apache-2.0

package process

import (
	"os"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/enforcer/guard"
)

// Name returns a process's name (comm), reduced to printable characters, or "" if it has exited. The process chooses its name.
func Name(pid int) string {
	guard.MayWait("a process's files")
	name, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	if err != nil {
		return ""
	}
	return strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(strings.TrimSuffix(string(name), "\n"), ""))
}
