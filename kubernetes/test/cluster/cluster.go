// SPDX-License-Identifier: Apache-2.0

// Package cluster starts Kubernetes' real control plane for tests: etcd, the API server, and if wanted the scheduler and the controller
// manager, which test/engines/build.sh has built. They listen on 127.0.0.1 at ports of their own, unless told otherwise, and end with the
// test or its process.
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

	"github.com/gpuslice/gpuslice/test/testhost"
)

// Cluster is a control plane.
type Cluster struct {
	T      testing.TB
	Dir    string               // of its own, below /tmp
	Admin  *rest.Config         // of a member of system:masters
	Client kubernetes.Interface // the admin's

	programs string
	url      string
	daemons  map[string]*Daemon
}

// Options of a cluster.
type Options struct {
	Dir        string   // where its files go; a new one that goes with the test, if it is empty
	Address    string   // the API server's; one of 127.0.0.1, if it is empty
	Controlled bool     // with scheduler and controller manager, and admission that has ServiceAccounts
	Users      []User   // beside the admin
	APIServer  []string // more of its flags
	Scheduler  []string // likewise
	Controller []string // likewise, of the controller manager
}

// User may call the API server with a token, as what its groups make of it.
type User struct {
	Name, Token string
	Groups      []string
}

// startTime is how long a program may take to answer: on a machine with other work much longer than the second that it needs.
const startTime = 2 * time.Minute

// Programs is the directory of test/engines/build.sh's kubernetes, beside which are its others. It is built, if it is not there.
func Programs(t testing.TB, names ...string) string {
	t.Helper()
	return filepath.Join(Engines(t, append([]string{"kubernetes"}, names...)...), "kubernetes")
}

// Engines is the directory of what test/engines/build.sh builds. What is named is built, if it is not there.
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

// Start starts a control plane, and returns when it answers.
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

// Program is the path of one of Kubernetes' programs.
func (c *Cluster) Program(name string) string { return filepath.Join(c.programs, name) }

// Daemon is one that the cluster has, by its program's name.
func (c *Cluster) Daemon(name string) *Daemon { return c.daemons[name] }

// run starts a daemon that the cluster has from now on.
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
	if !o.Controlled { // nobody makes the accounts that pods have
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

// Config is how the owner of a token calls the API server.
func (c *Cluster) Config(token string) *rest.Config {
	return &rest.Config{Host: c.url, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: -1}
}

// Kubeconfig writes a file of that name for programs that call the API server with a token, and returns its path.
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

// Kubectl runs kubectl as the admin, with the text on its standard input.
func (c *Cluster) Kubectl(stdin string, args ...string) (string, error) {
	c.T.Helper()
	cmd := exec.Command(c.Program("kubectl"), append([]string{"--kubeconfig=" + c.Kubeconfig("kubectl", c.Admin.BearerToken),
		"--cache-dir=" + c.path("kubectl")}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	cmd.Env = append(os.Environ(), "HOME="+c.Dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("kubectl %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// Daemon is a program that runs until it is ended. It does not outlive the test's process.
type Daemon struct {
	T       testing.TB
	Name    string
	Command []string
	Dir     string
	Env     []string     // nil: the test's
	Ready   func() error // whether it answers
	Log     testhost.Output

	command *exec.Cmd
}

// Start starts it, and returns when it answers.
func (d *Daemon) Start() {
	d.T.Helper()
	d.command = exec.Command(d.Command[0], d.Command[1:]...)
	d.command.Dir, d.command.Env, d.command.Stdout, d.command.Stderr = d.Dir, d.Env, &d.Log, &d.Log
	d.command.WaitDelay = time.Second // what it started holds its output open
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

// exited says whether a child has, and nobody has waited for it yet.
func exited(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, state, found := strings.Cut(string(text), ") ")
	return err != nil || found && strings.HasPrefix(state, "Z")
}

// PID is the process's, while it runs.
func (d *Daemon) PID() int { return d.command.Process.Pid }

// Stop ends it by a signal, and by SIGKILL if that takes too long.
func (d *Daemon) Stop(sig os.Signal) {
	if d.command == nil {
		return
	}
	testhost.End(d.command, sig)
	d.command = nil
}

// End stops it at the test's end, and says what it said, if the test failed.
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

// freeAddress has a port that nobody has now.
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
