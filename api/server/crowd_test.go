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
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/daemon/audit"
)

// Several users together have fewer places than there are: root finds one.
func TestManyUsersTogetherKeepRootNotOut(t *testing.T) {
	l := controlLimits
	l.header = time.Minute // they are not thrown out while this looks
	path := serveWith(t, &fakeService{}, l)
	program := asNobody(t)
	left := l.others
	for uid := uint32(60001); left > 0; uid++ {
		open := min(left, l.each)
		left -= open
		child := exec.Command(program.Path)
		child.Dir, child.SysProcAttr = program.Dir, program.SysProcAttr
		child.SysProcAttr.Credential.Uid = uid
		child.Env = append(program.Env, crowd+"="+path, fmt.Sprintf("%s_COUNT=%d", crowd, l.each), fmt.Sprintf("%s_OPEN=%d", crowd, open))
		in, err := child.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { in.Close(); _ = child.Wait() }()
		want := fmt.Sprintf("%d open, %d busy\n", open, l.each-open)
		if said, err := bufio.NewReader(out).ReadString('\n'); said != want {
			t.Fatalf("uid %d: %q, %v; want %q", uid, said, err, want)
		}
	}
	for range 100 {
		answers200(t, path)
	}
}

// Which groups somebody is in is not for him to say.
func TestTheGroupsOfWhoAsksAreWhatTheKernelSays(t *testing.T) {
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
	if out, err := child.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	groups := <-f.told
	slices.Sort(groups)
	if want := []uint32{61001, 61002, nobody}; !slices.Equal(slices.Compact(groups), want) {
		t.Errorf("%v, want %v", groups, want)
	}
}

// A user can be thousands in a user namespace: that gives him no more places, and no limit of theirs.
func TestTheUsersOfAUserNamespaceAreNotTheHosts(t *testing.T) {
	const asks = "GPUSLICE_ASKS_SUBORDINATE"
	if path := os.Getenv(asks); path != "" {
		r, err := httpClient(path).Get("http://gpuslice/v1/info")
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		body, _ := io.ReadAll(r.Body)
		fmt.Printf("status %d %s\n", r.StatusCode, body)
		return
	}
	const sub = 100000
	for name, c := range map[string]struct {
		inside, as int // the uid outside of 0 inside, and the uid inside as which is asked
		limits     limits
		want       string
	}{
		"a subordinate one":       {sub, 0, userLimits, "status 403"},
		"another one":             {sub, 7, userLimits, "status 403"},
		"on the control socket":   {sub, 0, controlLimits, "status 200"},
		"whom the namespace maps": {nobody, 0, userLimits, "status 200"},
	} {
		t.Run(name, func(t *testing.T) {
			path := serveWith(t, &fakeService{}, c.limits)
			child := asNobody(t, asks+"="+path)
			child.Args = append(child.Args, "-test.run=^"+strings.Split(t.Name(), "/")[0]+"$")
			if c.inside == nobody { // nobody makes it
				child.Args = append([]string{"setpriv", fmt.Sprintf("--reuid=%d", nobody), "--clear-groups", "unshare", "--map-root-user", child.Path}, child.Args[1:]...)
				var err error
				if child.Path, err = exec.LookPath("setpriv"); err != nil {
					t.Fatal(err)
				}
				child.SysProcAttr = nil
			} else {
				child.SysProcAttr = &syscall.SysProcAttr{
					Cloneflags:  syscall.CLONE_NEWUSER,
					UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: c.inside, Size: 10}},
					GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: c.inside, Size: 10}},
					Credential:  &syscall.Credential{Uid: uint32(c.as), NoSetGroups: true},
				}
			}
			out, err := child.CombinedOutput()
			if err != nil || !strings.Contains(string(out), c.want) {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}

// groupsService tells the groups of who asks who it is.
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
