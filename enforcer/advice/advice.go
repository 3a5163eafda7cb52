// SPDX-License-Identifier: Apache-2.0

// Package advice says what a person does about a service of this host that does not answer. On a host that systemd runs that is a command
// of systemd's; elsewhere a service is a program that root or a supervisor runs, whose log is where that one puts it.
//
// It must never do any of that itself, or ask anybody.
package advice

import (
	"os"
	"strings"
)

// booted exists while systemd is the init (sd_booted(3)). Tests have another.
var booted = "/run/systemd/system"

func systemd() bool {
	info, err := os.Lstat(booted)
	return err == nil && info.IsDir()
}

// AsRoot returns a command that only root may run, as this user types it. The command must need no shell: sudo redirects nothing.
func AsRoot(command ...string) string {
	if os.Geteuid() != 0 {
		command = append([]string{"sudo"}, command...)
	}
	return "`" + strings.Join(command, " ") + "`"
}

// Start says how a service is started: a clause with no subject before it.
func Start(service string) string {
	if systemd() {
		return AsRoot("systemctl start", service) + " starts it"
	}
	return AsRoot(service) + " starts it, in the foreground"
}

// Restart says how a service that may run is started again, as an order.
func Restart(service string) string {
	if systemd() {
		return AsRoot("systemctl restart", service)
	}
	return "end it, and start it again: " + AsRoot(service)
}

// Enable says how a service is started now and at each boot, as an order.
func Enable(service string) string {
	if systemd() {
		return "start it: " + AsRoot("systemctl enable --now", service)
	}
	return "start it: " + AsRoot(service)
}

// Log says where a service's log is.
func Log(service string) string {
	if systemd() {
		return "its log: " + AsRoot("journalctl -u", service)
	}
	return "its log, which is what it wrote on its standard error"
}
