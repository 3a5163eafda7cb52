// SPDX-License-Identifier: Apache-2.0

// Package cluster starts Kubernetes' real control plane for tests: etcd, the API server, and optionally the scheduler and the
// controller manager, built by test/engines/build.sh. They listen on free ports of 127.0.0.1 by default, and end with the test or
// its process.
package cluster

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/testhost"
)

// Cluster is a control plane.
type Cluster struct {
	T      testing.TB
	Dir    string               // directory of its files
	Admin  *rest.Config         // as a member of system:masters
	Client kubernetes.Interface // for Admin

	programs string
	url      string
	daemons  map[string]*Daemon
}

// Options configure a cluster.
type Options struct {
	Dir        string   // directory of its files; if empty, a new one that is removed with the test
	Address    string   // address of the API server; if empty, a free one of 127.0.0.1
	Controlled bool     // with scheduler, controller manager, and the ServiceAccount admission plugin
	Users      []User   // in addition to the admin
	APIServer  []string // additional flags
	Scheduler  []string // additional flags
	Controller []string // additional flags of the controller manager
}

// User may call the API server with a token, with the rights of its groups.
type User struct {
	Name, Token string
	Groups      []string
}

// startTime limits a program's start. It takes a second, but much longer on a busy machine.
const startTime = 2 * time.Minute

// Programs returns the directory of test/engines/build.sh's kubernetes. It builds that and names, if absent.
func Programs(t testing.TB, names ...string) string {
	t.Helper()
	return filepath.Join(Engines(t, append([]string{"kubernetes"}, names...)...), "kubernetes")
}

// Engines returns the directory in which test/engines/build.sh builds programs. It builds names, if absent.
func Engines(t testing.TB, names ...string) string {
	t.Helper()
	root, err := os.Getwd()
	for err == nil {
		if _, missing := os.Stat(filepath.Join(root, "test/engines/build.sh")); missing == nil {
			break
		}
		if root == "/" {
			err = errors.New("test/engines/build.sh is in no directory above")
		}
		root = filepath.Dir(root)
	}
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	build := exec.Command(filepath.Join(root, "test/engines/build.sh"), names...)
	build.Stderr = &said
	out, err := build.Output()
	if err != nil {
		t.Fatalf("test/engines/build.sh: %v\n%s%s", err, out, &said)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1]
}

// Start starts a control plane and waits until it answers.
func Start(t testing.TB, o Options) *Cluster {
	t.Helper()
	c := &Cluster{T: t, Dir: o.Dir, programs: Programs(t), daemons: make(map[string]*Daemon)}
	if c.Dir == "" {
		var err error
		c.Dir, err = os.MkdirTemp("/tmp", "gpuslice-test-")
		c.must(err)
		t.Cleanup(func() { os.RemoveAll(c.Dir) })
	}
	c.must(os.MkdirAll(filepath.Join(c.Dir, "certs"), 0o755))
	c.startEtcd()
	c.startAPIServer(o)
	if o.Controlled {
		c.startControllers(o)
	}
	return c
}

func (c *Cluster) must(err error) {
	c.T.Helper()
	if err != nil {
		c.T.Fatal(err)
	}
}

func (c *Cluster) path(parts ...string) string {
	return filepath.Join(append([]string{c.Dir}, parts...)...)
}

// Program returns the path of one of Kubernetes' programs.
func (c *Cluster) Program(name string) string { return filepath.Join(c.programs, name) }

// Daemon returns a daemon of the cluster by the name of its program.
func (c *Cluster) Daemon(name string) *Daemon { return c.daemons[name] }

func (c *Cluster) run(name string, ready func() error, args ...string) {
	c.T.Helper()
	d := &Daemon{T: c.T, Name: name, Ready: ready, Command: append([]string{c.Program(name)}, args...), Dir: c.Dir}
	c.daemons[name] = d
	d.Start()
	c.T.Cleanup(func() { d.End() })
}

func (c *Cluster) startEtcd() {
	c.T.Helper()
	client, peer := "http://"+freeAddress(c.T), "http://"+freeAddress(c.T)
	c.run("etcd", func() error { return dial(client) },
		"--data-dir="+c.path("etcd"), "--listen-client-urls="+client, "--advertise-client-urls="+client, "--listen-peer-urls="+peer,
		"--initial-advertise-peer-urls="+peer, "--initial-cluster=default="+peer, "--unsafe-no-fsync")
	c.url = client
}

func (c *Cluster) startAPIServer(o Options) {
	c.T.Helper()
	key := c.path("certs", "accounts.key")
	c.must(writeKey(key))
	const adminToken = "admin-of-the-test"
	users := append([]User{{Name: "admin", Token: adminToken, Groups: []string{"system:masters"}}}, o.Users...)
	var lines strings.Builder
	for i, u := range users {
		fmt.Fprintf(&lines, "%s,%s,%d,%q\n", u.Token, u.Name, i, strings.Join(u.Groups, ","))
	}
	c.must(os.WriteFile(c.path("certs", "tokens.csv"), []byte(lines.String()), 0o600))
	address := o.Address
	if address == "" {
		address = freeAddress(c.T)
	}
	host, port, err := net.SplitHostPort(address)
	c.must(err)
	etcd := c.url
	c.url = "https://" + address
	c.Admin = c.Config(adminToken)
	c.Client, err = kubernetes.NewForConfig(c.Admin)
	c.must(err)
	args := []string{
		"--etcd-servers=" + etcd, "--bind-address=" + host, "--secure-port=" + port, "--advertise-address=192.0.2.1", "--endpoint-reconciler-type=none",
		"--cert-dir=" + c.path("certs"), "--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file=" + key,
		"--service-account-signing-key-file=" + key, "--service-cluster-ip-range=10.96.0.0/16", "--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction", "--token-auth-file=" + c.path("certs", "tokens.csv"), "--allow-privileged=true",
		"--kubelet-preferred-address-types=InternalIP",
	}
	if !o.Controlled { // without the controller no accounts are created
		args = append(args, "--disable-admission-plugins=ServiceAccount")
	}
	c.run("kube-apiserver", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		return c.Client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	}, append(args, o.APIServer...)...)
}

func (c *Cluster) startControllers(o Options) {
	c.T.Helper()
	config := c.Kubeconfig("admin", c.Admin.BearerToken)
	for name, args := range map[string][]string{
		"kube-scheduler": append([]string{"--authentication-kubeconfig=" + config, "--authorization-kubeconfig=" + config}, o.Scheduler...),
		"kube-controller-manager": append([]string{"--service-account-private-key-file=" + c.path("certs", "accounts.key"),
			"--root-ca-file=" + c.path("certs", "apiserver.crt"), "--use-service-account-credentials=false"}, o.Controller...),
	} {
		address := freeAddress(c.T)
		_, port, err := net.SplitHostPort(address)
		c.must(err)
		c.run(name, func() error { return dial("https://" + address) }, append(args, "--kubeconfig="+config, "--bind-address=127.0.0.1",
			"--secure-port="+port, "--leader-elect=false", "--cert-dir="+c.path("certs", name))...)
	}
}

// Config returns a configuration to call the API server with a token.
func (c *Cluster) Config(token string) *rest.Config {
	return &rest.Config{Host: c.url, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: -1}
}

// Kubeconfig writes the kubeconfig file name with a token and returns its path.
func (c *Cluster) Kubeconfig(name, token string) string {
	c.T.Helper()
	file := c.path(name + ".kubeconfig")
	c.must(clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"c": {Server: c.url, InsecureSkipTLSVerify: true}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"u": {Token: token}},
		Contexts:       map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}},
		CurrentContext: "x",
	}, file))
	return file
}

// Kubectl runs kubectl as the admin.
func (c *Cluster) Kubectl(stdin string, args ...string) (string, error) {
	c.T.Helper()
	cmd := exec.Command(c.Program("kubectl"), append([]string{"--kubeconfig=" + c.Kubeconfig("kubectl", c.Admin.BearerToken),
		"--cache-dir=" + c.path("kubectl")}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	cmd.Env = append(os.Environ(), "HOME="+c.Dir)
	out, err := must.Printed(cmd)
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return out, err
}

// Daemon is a program that runs until stopped. It does not outlive the test's process.
type Daemon struct {
	T       testing.TB
	Name    string
	Command []string
	Dir     string
	Env     []string     // nil for the test's
	Ready   func() error // returns nil if the daemon answers
	Log     testhost.Output

	command *exec.Cmd
}

// Start starts the daemon and waits until it answers.
func (d *Daemon) Start() {
	d.T.Helper()
	d.command = exec.Command(d.Command[0], d.Command[1:]...)
	d.command.Dir, d.command.Env, d.command.Stdout, d.command.Stderr = d.Dir, d.Env, &d.Log, &d.Log
	d.command.WaitDelay = time.Second // its children hold the output open
	d.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := d.command.Start(); err != nil {
		d.T.Fatal(err)
	}
	deadline := time.Now().Add(startTime)
	for err := d.Ready(); err != nil; err = d.Ready() {
		if time.Now().After(deadline) || syscall.Kill(d.command.Process.Pid, 0) != nil || exited(d.command.Process.Pid) {
			d.T.Fatalf("%s is not up: %v\n%s", d.Name, err, d.tail())
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// exited reports whether a child has exited and was not waited for.
func exited(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, state, found := strings.Cut(string(text), ") ")
	return err != nil || found && strings.HasPrefix(state, "Z")
}

// PID returns the process ID of the running daemon.
func (d *Daemon) PID() int { return d.command.Process.Pid }

// Stop stops the daemon with a signal, and with SIGKILL after a timeout.
func (d *Daemon) Stop(sig os.Signal) {
	if d.command == nil {
		return
	}
	testhost.End(d.command, sig)
	d.command = nil
}

// End stops the daemon. If the test failed, it logs the end of the daemon's output.
func (d *Daemon) End() {
	d.Stop(syscall.SIGTERM)
	if d.T.Failed() {
		d.T.Logf("the end of what %s said:\n%s", d.Name, d.tail())
	}
}

func (d *Daemon) tail() string {
	text := d.Log.String()
	return text[max(0, len(text)-10000):]
}

func freeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func dial(at string) error {
	u, err := url.Parse(at)
	if err != nil {
		return err
	}
	conn, err := net.Dial("tcp", u.Host)
	if err != nil {
		return err
	}
	return conn.Close()
}

func writeKey(file string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600)
}
