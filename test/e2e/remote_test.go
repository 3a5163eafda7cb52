// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/lease"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// documented returns the first code block of a language in the section of docs/use/leases.md about other machines.
func documented(h *leaseHost, language string) string {
	text := must.Get(os.ReadFile("../../docs/use/leases.md"))(h.T)
	_, section, _ := strings.Cut(string(text), "\n## From another machine\n")
	_, block, _ := strings.Cut(section, "```"+language+"\n")
	block, _, ok := strings.Cut(block, "```")
	must.True(h.T, ok, "docs/use/leases.md has about other machines no", language)
	return block
}

// remote enables access from other machines as documented, and returns the environment of a client.
func (h *leaseHost) remote(t *testing.T) (dir string, env []string) {
	t.Helper()
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("needs openssl")
	}
	who, err := user.LookupId(fmt.Sprint(nobody))
	if err != nil {
		t.Skipf("needs a user for uid %d: %v", nobody, err)
	}
	dir = t.TempDir()
	commands := strings.NewReplacer("HOST=gpu1.example.org", "HOST=localhost", "NAME=alice", "NAME="+who.Username).Replace(documented(h, "sh"))
	make := exec.Command("/bin/sh", "-euc", commands)
	make.Dir = dir
	must.Output(make.CombinedOutput())(t)
	free := must.Get(net.Listen("tcp", "127.0.0.1:0"))(h.T)
	port := free.Addr().(*net.TCPAddr).Port
	h.Must(free.Close())
	h.stop(unix.SIGTERM)
	file := must.Get(os.OpenFile(h.Config(), os.O_APPEND|os.O_WRONLY, 0))(h.T)
	// The configuration ends with the section [leases].
	_, err = file.WriteString(strings.NewReplacer("[leases]\n", "", ":9837", fmt.Sprint("127.0.0.1:", port), "/etc/gpuslice/", dir+"/").Replace(documented(h, "toml")))
	h.Must(err)
	h.Must(file.Close())
	h.start()
	return dir, []string{
		fmt.Sprint("GPUSLICE_LEASE_ADDRESS=tls:localhost:", port), "GPUSLICE_LEASE_CERTIFICATE=" + dir + "/client.pem",
		"GPUSLICE_LEASE_KEY=" + dir + "/client.key", "GPUSLICE_LEASE_CA=" + dir + "/ca.pem",
	}
}

func TestALeaseIsAcquiredAndWorkedInFromAnotherMachine(t *testing.T) {
	h := newLeaseHost(t)
	dir, env := h.remote(t)
	run := func(args ...string) string {
		t.Helper()
		command := exec.Command(filepath.Join(h.Bin, "gpuslice"), append([]string{"lease"}, args...)...)
		command.Env = env
		out := must.Output(command.Output())(t, "gpuslice lease", args)
		return string(out)
	}
	var l lease.Lease
	h.Must(json.Unmarshal([]byte(run("acquire", "--vram", "64M", "--ttl", "10m", "--json")), &l))
	if l.UID != nobody || l.TokenFile != "" || l.Token == "" || !strings.HasPrefix(l.Address, "tls:localhost:") || !strings.HasSuffix(l.Address, "/"+l.ID) {
		t.Errorf("%+v", l)
	}
	local := must.Get(h.Show(t.Context(), l.ID))(h.T)
	if !strings.HasPrefix(local.Address, "unix:") || local.RemoteAddress != l.Address || local.Token != "" {
		t.Errorf("%+v", local)
	}
	s, err := lease.OpenTLS(t.Context(), l.Address, l.Token, lease.TLS{Certificate: dir + "/client.pem", Key: dir + "/client.key", CA: dir + "/ca.pem"})
	h.Must(err)
	h.Must(works(s, 20<<20)) // larger than a message
	h.Must(s.Close())

	t.Run("in Python", func(t *testing.T) {
		program := h.python(`
dir, address, token = sys.argv[1:]
with gpuslice.open(address, token, certificate=dir + "/client.pem", key=dir + "/client.key", ca=dir + "/ca.pem") as gpu:
    data = bytes(range(250)) * 40000  # larger than a message
    x, m = gpu.array(data), gpu.module(ptx)
    print(bytes(memoryview(x.get())) == data)
    y = gpu.array(array.array("f", [1, 2, 3]))
    m.scale[1, 3](y, 2.0, 3)
    print(y.get().tolist())
with gpuslice.lease("32M") as gpu:
    print(gpu.zeros(1).get().tolist(), gpu.lease.address.startswith("tls:localhost:"), len(gpuslice.list()))
print([l.address for l in gpuslice.list()] == [address])
`, dir, l.Address, l.Token)
		program.SysProcAttr = nil // the key is root's
		program.Env = append(program.Env, env...)
		expect.Equal(t, must.Get(must.Printed(program))(t), "True\n[2.0, 4.0, 6.0]\n[0.0] True 2\nTrue\n")
	})

	// A restart of the service closes the connection, but keeps the session.
	h.stop(unix.SIGKILL)
	h.start()
	h.Eventually("it is served again", func() bool {
		s, err := lease.Service{TLS: lease.TLS{Certificate: dir + "/client.pem", Key: dir + "/client.key", CA: dir + "/ca.pem"}}.Open(t.Context(), &l)
		return err == nil && works(s, 1<<20) == nil && s.Close() == nil
	})
	expect.Contains(t, run("list"), l.ID)
	run("drop", l.ID)
	for _, line := range []string{"lease acquired", "session opened from another machine"} {
		if !strings.Contains(h.said.String(), line) || !strings.Contains(h.said.String(), "remote=127.0.0.1:") {
			t.Errorf("the log has no %q:\n%s", line, h.said.String())
		}
	}
}
