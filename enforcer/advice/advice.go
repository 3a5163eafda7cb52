// SPDX-License-Identifier: Apache-2.0

// Package advice says how to start, restart, enable and inspect a service on this host. Under systemd the advice is a systemd command.
// Elsewhere root or a supervisor runs the service as a program, and the log is wherever its standard error goes.
//
// The package must never run a command or contact a service.
package advice

import (
	"os"
	"strings"
)

// booted exists while systemd is the init (sd_booted(3)). A variable for tests.
var booted = "/run/systemd/system"

func systemd() bool {
	info, err := os.Lstat(booted)
	return err == nil && info.IsDir()
}

// AsRoot returns a command that only root may run, as the current user has to type it. The command must need no shell: under sudo a
// redirection keeps the user's rights.
func AsRoot(command ...string) string {
	if os.Geteuid() != 0 {
		command = append([]string{"sudo"}, command...)
	}
	return "`" + strings.Join(command, " ") + "`"
}

// Start returns how to start a service, as a clause without a subject.
func Start(service string) string {
	if systemd() {
		return AsRoot("systemctl start", service) + " starts it"
	}
	return AsRoot(service) + " starts it, in the foreground"
}

// Restart returns how to restart a service that may be running, as an imperative.
func Restart(service string) string {
	if systemd() {
		return AsRoot("systemctl restart", service)
	}
	return "stop it and start it again: " + AsRoot(service)
}

// Enable returns how to start a service now and at each boot, as an imperative.
func Enable(service string) string {
	if systemd() {
		return "start it: " + AsRoot("systemctl enable --now", service)
	}
	return "start it: " + AsRoot(service)
}

// Log returns where to find a service's log.
func Log(service string) string {
	if systemd() {
		return "its log: " + AsRoot("journalctl -u", service)
	}
	return "its log (its standard error)"
}
