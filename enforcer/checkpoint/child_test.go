// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/must"
)

func TestMain(m *testing.M) {
	if IsChild(os.Args) {
		os.Exit(Child(os.Args, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

func TestAnotherProcessOfThePidIsNotTouched(t *testing.T) {
	self := must.Get(process.Open(os.Getpid()))(t)
	defer self.Close()
	another := self.Identity
	another.Start++
	d := Driver{LockFile: filepath.Join(t.TempDir(), "lock")}
	for _, action := range []Action{ask, Lock, Checkpoint, Restore, Unlock} {
		if err := d.Do(action, another, await.Patience); err == nil || !strings.Contains(err.Error(), process.ErrDead.Error()) {
			t.Errorf("%s: %v", action, err)
		}
	}
	if _, err := d.State(self.Identity, await.Patience); err != nil && strings.Contains(err.Error(), process.ErrDead.Error()) {
		t.Error(err)
	}
}
