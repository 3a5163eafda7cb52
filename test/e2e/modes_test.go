// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/testhost"
)

const modesPage = "../../docs/evidence/modes.md"

// checkModes compares everything below dirs, which names the table's directories relative to the host's, with the
// table in docs/evidence/modes.md. Each row of the given programs is required.
func checkModes(h *testhost.Host, programs []string, dirs map[string]string) error {
	text, err := os.ReadFile(modesPage)
	if err != nil {
		return err
	}
	type row struct {
		path, mode, program string
		owners              []string
		seen                bool
	}
	var rows []*row
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.ReplaceAll(strings.TrimSpace(line), "`", ""), " | ")
		if len(cells) == 5 && strings.HasPrefix(line, "| `") {
			rows = append(rows, &row{path: cells[0][2:], mode: cells[1], owners: strings.Split(cells[2], ", "), program: cells[3]})
		}
	}
	owners := map[uint32]string{0: "root", nobody: "user"}
	var errs []error
	for name, dir := range dirs {
		errs = append(errs, filepath.WalkDir(filepath.Join(h.Dir, dir), func(file string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := os.Lstat(file)
			if err != nil {
				return err
			}
			below, err := filepath.Rel(filepath.Join(h.Dir, dir), file)
			if err != nil {
				return err
			}
			found := path.Join(name, below)
			st := info.Sys().(*syscall.Stat_t)
			owner := map[bool]string{true: owners[st.Uid], false: "broker"}[st.Uid < 1000000000]
			i := slices.IndexFunc(rows, func(r *row) bool {
				matches, _ := path.Match(r.path, found)
				return matches && info.Mode().String() == r.mode && slices.Contains(r.owners, owner)
			})
			if i < 0 {
				errs = append(errs, fmt.Errorf("the table has no %s of mode %v and owner %d (%s)", found, info.Mode(), st.Uid, owner))
				return nil
			}
			rows[i].seen = true
			return nil
		}))
	}
	for _, r := range rows {
		for name := range dirs {
			if (r.path == name || strings.HasPrefix(r.path, name+"/")) && !r.seen && slices.Contains(programs, r.program) {
				errs = append(errs, fmt.Errorf("there is no %s of mode %s", r.path, r.mode))
			}
		}
	}
	return errors.Join(errs...)
}

func TestNoUmaskChangesAModeOfTheLeaseService(t *testing.T) {
	for _, umask := range []string{"000", "027", "077"} {
		t.Run(umask, func(t *testing.T) {
			h := newLeaseHost(t)
			h.stop(unix.SIGTERM)
			h.Must(os.RemoveAll(h.leases()))
			text := must.Get(os.ReadFile(h.Config()))(h.T)
			socket := filepath.Join(h.Dir, "sockets", "leases.sock")
			h.Must(os.WriteFile(h.Config(), []byte(strings.ReplaceAll(string(text), h.Service.Socket, socket)), 0o644))
			h.Service.Socket = socket
			h.umask = umask
			h.start()
			h.leased(nobody, "--vram", "2G")
			home := filepath.Join(h.Dir, "home")
			h.Must(os.Mkdir(home, 0o755))
			h.Must(os.Chown(home, nobody, nobody))
			session := h.as(nobody, "--socket", filepath.Join(h.Dir, "run", "session.sock"), "run", "--vram", "1G", "--",
				"sh", "-c", "umask "+umask+`; exec "$@"`, "sh", filepath.Join(h.bin, "gpuslice-broker"), "--directory", filepath.Join(home, "broker"), "--vram", "64M")
			session.Env = append(session.Env, "LD_LIBRARY_PATH="+filepath.Join(h.bin, "fakecuda"), "FAKECUDA_STATE="+filepath.Join(h.Dir, "fake", "state"))
			output := must.Get(session.StdoutPipe())(h.T)
			h.Must(session.Start())
			defer func() {
				_ = session.Process.Signal(unix.SIGTERM)
				_ = session.Wait()
			}()
			if line, err := bufio.NewReader(output).ReadString('\n'); !strings.HasPrefix(line, "address ") {
				t.Fatalf("the session says %q, %v", line, err)
			}
			h.Must(checkModes(h.Host, []string{"gpuslice-leased", "gpusliced for a session", "gpuslice-broker"},
				map[string]string{"SOCKETS": "sockets", "LEASES": "run/leases", "RUN/slices": "run/slices", "BROKER": "home/broker"}))
		})
	}
}
