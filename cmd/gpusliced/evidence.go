// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"os/user"
	"strconv"
	"strings"
	"syscall"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/daemon/audit"
	"github.com/gpuslice/gpuslice/daemon/config"
)

// openAudit starts the audit log; nil if it is disabled.
func openAudit(c config.Config, log *slog.Logger) *audit.Writer {
	if c.Audit.File == "" {
		return nil
	}
	o := audit.Options{
		File: c.Audit.File, MaxSize: int64(c.Audit.MaxSize), MaxAge: time.Duration(c.Audit.MaxAge), Keep: c.Audit.Keep, Log: log,
	}
	if g, err := user.LookupGroup(c.Enforcer.Group); err == nil {
		if id, err := strconv.Atoi(g.Gid); err == nil {
			o.GID = id
		}
	}
	return audit.Open(o)
}

// checks are the checks of the enforcer's health outside of the enforcer: its control socket is still at its path, and the audit
// log can be written.
type checks struct {
	socket string
	stat   syscall.Stat_t // of the socket at its creation
	record *audit.Writer
}

func (c *checks) checkSocket(socket string) error {
	c.socket = socket
	if err := syscall.Stat(socket, &c.stat); err != nil {
		return fmt.Errorf("stat %s: %w", socket, err)
	}
	return nil
}

func (c *checks) check() []api.Check {
	socket := api.Check{Name: "socket", For: api.ForReady, OK: true}
	var now syscall.Stat_t
	switch err := syscall.Stat(c.socket, &now); {
	case c.socket == "": // not yet created
		socket.OK, socket.Message = false, "the control socket is not there yet"
	case err != nil:
		socket.OK, socket.Message = false, fmt.Sprintf("the control socket %s is gone: restart gpusliced (%v)", c.socket, err)
	case now.Ino != c.stat.Ino || now.Dev != c.stat.Dev:
		socket.OK, socket.Message = false, fmt.Sprintf("the control socket %s belongs to another process: restart gpusliced", c.socket)
	}
	all := []api.Check{socket}
	if c.record != nil {
		_, dropped := c.record.Counts()
		record := api.Check{Name: "audit", OK: !c.record.Dropping(), Failures: dropped}
		if !record.OK {
			record.Message = "the audit log cannot be written: entries are dropped"
		}
		all = append(all, record)
	}
	return all
}

// watchdog notifies systemd's watchdog (WatchdogSec= in the unit) while healthy reports Live, until ctx ends. Otherwise systemd
// ends the service by SIGABRT, at which Go logs the stacks of the goroutines, and restarts it.
func watchdog(ctx context.Context, log *slog.Logger, healthy func() api.Health) {
	allowed, err := systemd.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("systemd's watchdog settings cannot be read", "err", err)
	}
	if allowed == 0 {
		return
	}
	ticker := time.NewTicker(max(time.Millisecond, allowed/3)) // a late tick must not end the service
	defer ticker.Stop()
	hangs := false
	for {
		if h := healthy(); h.Live {
			hangs = false
			notify(log, systemd.SdNotifyWatchdog)
		} else if !hangs {
			hangs = true
			log.Error("the enforcer hangs: if it does not recover, systemd restarts it; slices and their processes continue", "err", failedChecks(h))
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func failedChecks(h api.Health) string {
	var said []string
	for _, c := range h.Checks {
		if !c.OK && c.For == api.ForLive {
			said = append(said, c.Message)
		}
	}
	return strings.Join(said, "; ")
}
