// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

func TestMain(m *testing.M) {
	if IsChild(os.Args) {
		os.Exit(Child(os.Args, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

func TestHungCallBlocksOnlyCallsOnTheSameProcess(t *testing.T) {
	self := must.Get(process.Open(os.Getpid()))(t)
	defer self.Close()
	d := Driver{LockFile: filepath.Join(t.TempDir(), "lock")}
	file := must.Get(os.OpenFile(d.LockFile, os.O_CREATE|os.O_RDWR, 0o600))(t)
	defer file.Close()
	lock := func(pid int) {
		t.Helper()
		must.Do(t, unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Start: int64(pid), Len: 1}))
	}
	lock(self.PID + 1)
	// Without a driver this fails, but only a wait for the lock is ErrHangs.
	if _, err := d.State(self.Identity, await.Patience); errors.Is(err, ErrHangs) {
		t.Error(err)
	}
	lock(self.PID)
	expect.ErrorIs(t, must.Err(d.State(self.Identity, 100*time.Millisecond)), ErrHangs)
}

func TestReusedPIDIsNotTouched(t *testing.T) {
	self := must.Get(process.Open(os.Getpid()))(t)
	defer self.Close()
	another := self.Identity
	another.Start++
	d := Driver{LockFile: filepath.Join(t.TempDir(), "lock")}
	for _, action := range []Action{getState, Lock, Checkpoint, Restore, Unlock} {
		expect.ErrorContains(t, d.Do(action, another, await.Patience), process.ErrDead.Error(), action)
	}
	if _, err := d.State(self.Identity, await.Patience); err != nil && strings.Contains(err.Error(), process.ErrDead.Error()) {
		t.Error(err)
	}
}
