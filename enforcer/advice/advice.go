// SPDX-License-Identifier: Apache-2.0

// Package advice says what a person does about a service of this host that does not answer. On a host that systemd runs that is a command
// of systemd's; elsewhere a service is a program that root or a supervisor runs, whose log is where that one puts it.
//
// It must never do any of that itself, or ask anybody.
package advice

import "os"

// booted exists while systemd is the init (sd_booted(3)). Tests have another.
var booted = "/run/systemd/system"

func systemd() bool {
	info, err := os.Lstat(booted)
	return err == nil && info.IsDir()
}

// Start says how a service is started: a clause with no subject before it.
func Start(service string) string {
	if systemd() {
		return "`systemctl start " + service + "` starts it"
	}
	return "root starts it: `" + service + "`"
}

// Restart says how a service that may run is started again, as an order.
func Restart(service string) string {
	if systemd() {
		return "`systemctl restart " + service + "`"
	}
	return "end it, and start `" + service + "` again"
}

// Enable says how a service is started now and at each boot, as an order.
func Enable(service string) string {
	if systemd() {
		return "start it: `systemctl enable --now " + service + "`"
	}
	return "start it, as root: `" + service + "`"
}

// Log says where a service's log is.
func Log(service string) string {
	if systemd() {
		return "its log: `journalctl -u " + service + "`"
	}
	return "its log, which is what it wrote on its standard error"
}
