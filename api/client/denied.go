// SPDX-License-Identifier: Apache-2.0

package client

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// DeniedError reports that the caller has no permission to use the socket. The enforcer may be running.
type DeniedError struct {
	Socket string
	Err    error
}

func (e *DeniedError) Error() string {
	return fmt.Sprintf("you may not use the enforcer's socket %s: root may, %s", e.Socket, JoinGroup(e.Socket))
}

func (e *DeniedError) Unwrap() error { return e.Err }

// JoinGroup returns advice on using the socket without root.
func JoinGroup(socket string) string {
	group := groupOf(socket)
	if group == "" {
		return "and no group: `group` in gpusliced's configuration names no existing group (`sudo groupadd --system gpuslice`, then restart gpusliced). " + without
	}
	return fmt.Sprintf("and members of the group %s: `sudo usermod -aG %s USER`, then log in again. %s", group, group, without)
}

const without = "[[sessions.limits]] in gpusliced's configuration gives other users sessions, and `gpuslice run` works without gpusliced"

// groupOf returns the group that may use a socket, or "" if there is none or it is unknown. It avoids package os/user, which
// would be linked into the hook.
func groupOf(socket string) string {
	var s syscall.Stat_t
	if syscall.Stat(socket, &s) != nil || s.Gid == 0 || s.Mode&syscall.S_IWGRP == 0 {
		return ""
	}
	number := strconv.FormatUint(uint64(s.Gid), 10)
	groups, _ := os.ReadFile("/etc/group")
	for line := range strings.Lines(string(groups)) {
		if fields := strings.SplitN(line, ":", 4); len(fields) == 4 && fields[2] == number {
			return fields[0]
		}
	}
	return number
}
