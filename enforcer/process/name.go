// SPDX-License-Identifier: Apache-2.0

package process

import (
	"os"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/enforcer/guard"
)

// Name is a process's name, which it can choose: printable, and short. "" if it has ended.
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
