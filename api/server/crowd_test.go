// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/daemon/audit"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// Several users together cannot take all places: root gets one.
func TestManyUsersDoNotBlockRoot(t *testing.T) {
	l := controlLimits
	l.header = time.Minute // no timeout during the test
	path := serveWith(t, &fakeService{}, l)
	program := asNobody(t)
	left := l.others
	for uid := uint32(1); left > 0; uid++ { // which each host knows
		open := min(left, l.perUser)
		left -= open
		child := exec.Command(program.Path)
		child.Dir, child.SysProcAttr = program.Dir, program.SysProcAttr
		child.SysProcAttr.Credential.Uid = uid
		// The child (TestMain) opens COUNT connections, keeps OPEN of them, prints how many stayed open, and waits for the end of its input.
		child.Env = append(program.Env, crowd+"="+path, fmt.Sprintf("%s_COUNT=%d", crowd, l.perUser), fmt.Sprintf("%s_OPEN=%d", crowd, open))
		in := must.Get(child.StdinPipe())(t)
		out := must.Get(child.StdoutPipe())(t)
		must.Do(t, child.Start())
		defer func() { in.Close(); _ = child.Wait() }()
		want := fmt.Sprintf("%d open, %d busy\n", open, l.perUser-open)
		must.Equal(t, must.Get(bufio.NewReader(out).ReadString('\n'))(t), want, "uid", uid)
	}
	for range 100 {
		answers200(t, path)
	}
}

// The server asks the kernel for the caller's groups.
func TestGroupsOfAPeerComeFromTheKernel(t *testing.T) {
	const asks = "GPUSLICE_ASKS"
	if path := os.Getenv(asks); path != "" {
		answers200(t, path)
		return
	}
	f := &groupsService{told: make(chan []uint32, 1)}
	path := serveWith(t, f, userLimits)
	child := asNobody(t, asks+"="+path)
	child.Args = append(child.Args, "-test.run=^"+t.Name()+"$")
	child.SysProcAttr.Credential.Groups = []uint32{61001, 61002}
	must.Output(child.CombinedOutput())(t)
	groups := <-f.told
	slices.Sort(groups)
	if want := []uint32{61001, 61002, nobody}; !slices.Equal(slices.Compact(groups), want) {
		t.Errorf("%v, want %v", groups, want)
	}
}

// unknownUID is unknown to every host.
const unknownUID = 3_000_000_007

// A user can have thousands of uids in a user namespace, and, through setuid programs that remain, outside of it. They give no more places.
func TestUIDOfNoHostUserIsRefusedInAnyNamespace(t *testing.T) {
	const asks = "GPUSLICE_ASKS_AS_NO_USER"
	if path := os.Getenv(asks); path != "" {
		r, err := httpClient(path).Get("http://gpuslice/v1/info")
		must.Do(t, err)
		defer r.Body.Close()
		body, _ := io.ReadAll(r.Body)
		fmt.Printf("status %d %s\n", r.StatusCode, body)
		return
	}
	for name, c := range map[string]struct {
		uid       uint32
		namespace bool // maps the uid
		users     bool // on the users' socket
		want      string
	}{
		"mapped in a namespace, in no subuid file": {unknownUID, true, true, "status 403"},
		"the same, without a namespace":            {unknownUID, false, true, "status 403"},
		"on the control socket":                    {unknownUID, true, false, "status 200"},
		"a user mapped in a namespace":             {nobody, true, true, "status 200"},
		"a user outside of all namespaces":         {nobody, false, true, "status 200"},
	} {
		t.Run(name, func(t *testing.T) {
			handler := Handler(&fakeService{}, quiet())
			if c.users {
				handler = UserHandler(&fakeService{}, quiet())
			}
			child := asNobody(t, asks+"="+serveHandler(t, handler, userLimits))
			child.Args = append(child.Args, "-test.run=^"+strings.Split(t.Name(), "/")[0]+"$")
			child.SysProcAttr.Credential = &syscall.Credential{Uid: c.uid, Gid: nobody}
			if c.namespace {
				child.SysProcAttr = &syscall.SysProcAttr{
					Cloneflags:  syscall.CLONE_NEWUSER,
					UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(c.uid), Size: 1}},
					GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: nobody, Size: 1}},
					Credential:  &syscall.Credential{NoSetGroups: true},
				}
			}
			out := must.Output(child.CombinedOutput())(t)
			expect.Contains(t, string(out), c.want)
		})
	}
}

func TestSubordinateUIDsHaveThePlacesOfTheirOwner(t *testing.T) {
	file := filepath.Join(t.TempDir(), "subuid")
	must.Do(t, os.WriteFile(file, []byte("nobody:3000000000:65536\n"), 0o600))
	path := socketPath(t)
	must.Do(t, os.Chmod(filepath.Dir(path), 0o755))
	listener := must.Get(ListenForUsers(path))(t)
	defer listener.Close()
	l := limit(listener, userLimits).(*limited)
	l.users.Subuid, l.lookUp = file, await.Patience
	for i, uid := range []uint32{unknownUID, nobody, unknownUID + 1} {
		child := asNobody(t, crowd+"="+path, crowd+"_COUNT=1", crowd+"_OPEN=1")
		child.SysProcAttr.Credential.Uid = uid
		in := must.Get(child.StdinPipe())(t)
		must.Do(t, child.Start())
		conn := must.Get(l.Accept())(t)
		defer func() { conn.Close(); in.Close(); _ = child.Wait() }()
		if got := conn.(*limitedConn).counts; got != nobody || l.by[nobody] != i+1 {
			t.Errorf("uid %d counts for uid %d; the counts are %v", uid, got, l.by)
		}
	}
}

// groupsService answers with the caller's groups.
type groupsService struct {
	fakeService
	told chan []uint32
}

func (g *groupsService) Info(ctx context.Context) (api.Info, error) {
	g.told <- GroupsOf(ctx)
	return g.fakeService.Info(ctx)
}

func TestATokenIsInNoAuditEntry(t *testing.T) {
	token := strings.Repeat("ab", 32)
	var put []audit.Entry
	s := NewForUsers(&fakeService{err: &api.Error{Code: api.CodeForbidden, Message: "no"}}, quiet())
	s.AuditWith(func(e audit.Entry) { put = append(put, e) })
	r := httptest.NewRequest("POST", "/v1/slices/s1/join", strings.NewReader(`{"pid":7}`))
	r.Header.Set("Authorization", "Bearer "+token)
	s.http.Handler.ServeHTTP(httptest.NewRecorder(), r)
	if len(put) != 1 || put[0].Slice != "s1" || strings.Contains(fmt.Sprintf("%+v", put[0]), token) {
		t.Errorf("%+v", put)
	}
}
