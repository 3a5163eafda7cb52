//go:build faults

// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/test/await"
)

// patience is the timeout for immediate actions; test machines are slow.
const patience = await.Patience

type daemon struct {
	w *world

	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{} // closed when cmd has ended
}

func (w *world) config() string    { return filepath.Join(w.dir, "config.toml") }
func (w *world) socket() string    { return filepath.Join(w.dir, "run", "control.sock") }
func (w *world) nvmlFault() string { return filepath.Join(w.dir, "nvml") }
func (w *world) slicesDir() string { return filepath.Join(w.dir, "run", "slices") }

// launch starts gpusliced, which dies at a point if one is given. If revive is not 0, a dead daemon is restarted after that
// time, as by systemd.
func (d *daemon) launch(point string, revive time.Duration) error {
	words := []string{binary(d.w, "gpusliced"), "--config", d.w.config(), "--log-level", "debug"}
	if d.w.misled {
		words = append([]string{programs["mislead"], d.w.liesFile(), d.w.stateDir(), "--"}, words...)
	}
	cmd := exec.Command(words[0], words[1:]...)
	log, err := os.OpenFile(d.w.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(d.w.env(), "FAKECUDA_NVML_FAULT="+d.w.nvmlFault(), killpoint.Env+"="+point)
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	d.mu.Lock()
	d.cmd, d.done = cmd, done
	d.mu.Unlock()
	go func() {
		_ = cmd.Wait()
		if revive > 0 {
			time.Sleep(revive)
			_ = d.launch("", 0) // callers that wait for it notice a failed start
		}
		close(done)
	}()
	return nil
}

func (d *daemon) now() (*exec.Cmd, chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cmd, d.done
}

var errEnded = errors.New("it has ended")

// up waits until the newest process answers; an error reports that it ended.
func (d *daemon) up() error {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		cmd, done := d.now()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		info, err := d.w.client.Info(ctx)
		cancel()
		if err == nil && info.PID == cmd.Process.Pid {
			return nil
		}
		select {
		case <-done:
			if newer, _ := d.now(); newer == cmd {
				return errEnded
			}
		default:
		}
	}
	return fmt.Errorf("it does not answer within %v", patience)
}

func (d *daemon) end(sig unix.Signal) {
	d.w.Helper()
	d.w.must(d.ends(sig))
}

// ends is end that returns an error if gpusliced keeps running.
func (d *daemon) ends(sig unix.Signal) error {
	for _, s := range d.w.slices {
		s.releaseUnknown = s.releaseUnknown && sig != unix.SIGKILL
	}
	for {
		cmd, done := d.now()
		if cmd == nil {
			return nil
		}
		_ = unix.Kill(cmd.Process.Pid, sig)
		select {
		case <-done:
		case <-time.After(patience):
			return fmt.Errorf("after %v the enforcer, process %d, has not ended by %v", patience, cmd.Process.Pid, sig)
		}
		if newer, _ := d.now(); newer == cmd {
			return nil
		}
	}
}

func (w *world) start() {
	w.Helper()
	if err := w.daemon.launch("", 0); err != nil {
		w.fail("start the enforcer: %v", err)
	}
	if err := w.daemon.up(); err != nil {
		w.fail("start the enforcer: %v", err)
	}
}

func (w *world) restart(sig unix.Signal) {
	w.Helper()
	w.daemon.end(sig)
	w.start()
}

func (w *world) descriptors() int {
	cmd, _ := w.daemon.now()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", cmd.Process.Pid))
	if err != nil {
		w.fail("count the enforcer's descriptors: %v", err)
	}
	return len(entries)
}
