// SPDX-License-Identifier: Apache-2.0

package service

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/api/client"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/unixsocket"
	"github.com/gpuslice/gpuslice/lease/broker"
	"github.com/gpuslice/gpuslice/lease/leasepb"
)

// begin creates all parts of a lease. After a failure the caller must call end.
func (s *Service) begin(ctx context.Context, l *lease, who Peer, r *leasepb.AcquireRequest) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("its broker did not start within %s", startTimeout))
	defer cancel()
	dir := s.dirOf(l.ID)
	l.Acquired = time.Now().UTC()
	// Store the record first, so that the next service knows of everything that is left.
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	killpoint.Pass("acquire.directory")
	if err := l.put(dir); err != nil {
		return err
	}
	killpoint.Pass("acquire.recorded")
	token, err := makeToken(filepath.Join(dir, tokenName), l.UID, l.GID)
	if err != nil {
		return err
	}
	killpoint.Pass("acquire.token")
	if err := s.cgroups.make(l.ID); err != nil {
		return err
	}
	killpoint.Pass("acquire.cgroup")
	var slice api.RegisterReply
	err = s.start(ctx, l, func() error {
		if slice, err = s.register(ctx, l, who, r); err != nil {
			return err
		}
		killpoint.Pass("acquire.admitted")
		l.Session = broker.Config{
			Environment: []string{
				"LD_PRELOAD=" + slice.Library, api.DirEnv + "=" + filepath.Join(slice.Dir, "bind"), "CUDA_VISIBLE_DEVICES=" + l.Device,
			},
			Lease: l.ID, VRAM: l.VRAM, Token: token, Reserve: l.Reserved, Clients: s.MaxClients, LoadTimeout: s.LoadTimeout, Followed: true,
		}
		if n := r.GetClients(); n > 0 {
			l.Session.Clients = int(n)
		}
		if r.GetLinger() != nil {
			l.Session.Linger = max(r.GetLinger().AsDuration(), time.Millisecond) // 0 would mean none
		}
		return nil
	})
	if err != nil {
		return err
	}
	// So far only root could connect.
	if err := os.Chmod(dir, 0o711); err != nil {
		return err
	}
	killpoint.Pass("acquire.opened")
	if ctx.Err() != nil { // the caller would not learn of the lease
		return context.Cause(ctx)
	}
	// Last: once the record names the broker, the owner sees the lease in the list, even if the answer is lost.
	if err := l.put(dir); err != nil {
		return err
	}
	killpoint.Pass("acquire.stored")
	l.recordAnswer(s.question(), slice.Slice)
	l.since = time.Now()
	s.counts.leaseBegan(l) // before anything can end the lease
	s.mu.Lock()
	l.serving = true
	s.mu.Unlock()
	s.supervisors.Go(func() { s.superviseBroker(l) })
	return nil
}

func (s *Service) register(ctx context.Context, l *lease, who Peer, r *leasepb.AcquireRequest) (api.RegisterReply, error) {
	ttl, err := ttlOf(r.GetTtl())
	if err != nil {
		return api.RegisterReply{}, err
	}
	user := &api.User{UID: who.UID, Groups: who.Groups}
	if s.unlimited(who) {
		user = &api.User{} // also unlimited on the control socket
	}
	user.Remote = who.remote
	var reply api.RegisterReply
	err = client.AwaitRoom(ctx, func() (err error) {
		reply, err = s.Enforcer.Register(ctx, api.RegisterRequest{
			ID: l.ID, PID: l.PID, UID: l.BrokerUID, GID: l.BrokerUID, For: user, Tenant: l.Tenant, TTL: ttl, Visible: []string{l.Device},
			Quotas: []api.Quota{{Device: l.Device, Bytes: l.VRAM + l.Overhead}},
		})
		return err
	})
	if err != nil && !l.process.Alive() {
		return reply, errors.New("the lease's broker exited before it was admitted: try again; if it exits again, see the log of gpuslice-leased")
	}
	if err == nil {
		l.Generation = reply.Slice.Generation
	}
	return reply, err
}

const tokenBytes = 32

// makeToken creates the lease's token, and stores it in a file for the owner.
func makeToken(path string, uid, gid uint32) (string, error) {
	var b [tokenBytes]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	token := hex.EncodeToString(b[:])
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}
	defer file.Close()
	if _, err := file.WriteString(token + "\n"); err != nil {
		return "", err
	}
	return token, file.Chown(int(uid), int(gid))
}

type child struct {
	command *exec.Cmd
	config  *os.File // written to ConfigFD
	ready   *os.File // read from ReadyFD
	output  *output
}

// start starts a broker in the lease's cgroup, and returns when it serves. It calls admit before the broker gets its
// configuration. It kills a broker that fails to serve.
func (s *Service) start(ctx context.Context, l *lease, admit func() error) (err error) {
	if err := s.spawn(l, s.dirOf(l.ID)); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = l.process.Signal(syscall.SIGKILL) // before it reads the end of its configuration
			if words := l.child.output.text(); words != "" {
				s.logOf(l.UID).Info("a broker that failed to start wrote", "lease", l.ID, "output", words)
			}
		}
		l.child.config.Close()
		l.child.ready.Close()
	}()
	l.pass("forked")
	if err := s.cgroups.add(l.ID, l.PID); err != nil {
		return err
	}
	l.pass("moved")
	if err := admit(); err != nil {
		return err
	}
	if err := l.child.configure(ctx, l.Session); err != nil {
		return err
	}
	l.pass("told")
	return l.child.serve(ctx)
}

func (s *Service) spawn(l *lease, dir string) error {
	var given, kept []*os.File
	closeAll := func(files []*os.File) {
		for _, file := range files {
			file.Close()
		}
	}
	defer func() { closeAll(given) }()
	pipe := func(read bool) error {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		if read {
			r, w = w, r
		}
		kept, given = append(kept, r), append(given, w)
		return nil
	}
	err := pipe(true) // ConfigFD
	if err == nil {
		err = pipe(false) // ReadyFD
	}
	for _, name := range []string{sessionName, sharedName} {
		if err == nil {
			var file *os.File
			if file, err = listen(filepath.Join(dir, name), l.UID, l.GID); err == nil {
				given = append(given, file)
			}
		}
	}
	if err != nil {
		closeAll(kept)
		return err
	}
	l.pass("listening")
	c := &child{command: s.command(l, "--service", given), config: kept[0], ready: kept[1]}
	var written *os.File
	if c.output, written, err = newOutput(l.ID, s.Log); err != nil {
		closeAll(kept)
		return err
	}
	defer written.Close()
	c.command.Stdout, c.command.Stderr = written, written
	if err := s.launch(l, c.command); err != nil {
		closeAll(kept)
		return fmt.Errorf("start the broker: %w", err)
	}
	exited := make(chan struct{})
	l.child, l.exited = c, exited
	handle, opened := process.Open(c.command.Process.Pid) // it exists: Wait has not been called
	go func() {
		_ = c.command.Wait() // the status is in ProcessState
		close(exited)        // not l.exited: the lease may have another broker now
	}()
	if opened != nil {
		_ = c.command.Process.Kill()
		closeAll(kept)
		return opened
	}
	l.process, l.identity = handle, identity{handle.PID, handle.Start}
	return nil
}

// command returns the broker's command, run as the lease's own user.
func (s *Service) command(l *lease, how string, files []*os.File) *exec.Cmd {
	c := exec.Command(s.Broker, how)
	c.ExtraFiles = files
	c.Env = environment(os.Environ())
	c.Dir = "/"
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: l.BrokerUID, Gid: l.BrokerUID}}
	return c
}

// launch starts a process, directly in the lease's cgroup if the kernel can do that.
func (s *Service) launch(l *lease, c *exec.Cmd) error {
	if cgroup := s.cgroups.unified(l.ID); cgroup != nil { // saves moving it, which takes 10 ms
		c.SysProcAttr.UseCgroupFD, c.SysProcAttr.CgroupFD = true, int(cgroup.Fd())
		defer cgroup.Close()
	}
	return c.Start()
}

// failAfter makes configure and serve fail once ctx ends.
func (c *child) failAfter(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() {
		_ = c.config.SetDeadline(time.Unix(1, 0))
		_ = c.ready.SetDeadline(time.Unix(1, 0))
	})
}

func (c *child) configure(ctx context.Context, config broker.Config) error {
	text, err := json.Marshal(config)
	if err != nil {
		return err
	}
	defer c.failAfter(ctx)()
	if _, err := c.config.Write(text); err != nil && !errors.Is(err, syscall.EPIPE) {
		return errors.Join(context.Cause(ctx), fmt.Errorf("send the broker its configuration: %w", err))
	}
	return c.config.Close()
}

func (c *child) serve(ctx context.Context) error {
	defer c.failAfter(ctx)()
	const maxBytes = 16 << 10
	line, err := bufio.NewReader(io.LimitReader(c.ready, maxBytes)).ReadBytes('\n')
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	var ready broker.Ready
	if err != nil || json.Unmarshal(line, &ready) != nil {
		return errors.New("its broker exited before it served: see the log of gpuslice-leased")
	}
	if ready.Error != "" {
		return fmt.Errorf("its broker failed to start: %s", ready.Error)
	}
	return nil
}

// environment returns the service's environment without variables that must not reach a broker.
func environment(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return name == "LD_PRELOAD" || name == "NOTIFY_SOCKET" || name == "LISTEN_FDS" || name == "LISTEN_PID" || name == "WATCHDOG_USEC" ||
			name == "WATCHDOG_PID" || strings.HasPrefix(name, "GPUSLICE_") || strings.HasPrefix(name, "CUDA_")
	})
}

// listen creates a socket that only its owner can connect to. It atomically replaces a former broker's, so that clients
// always find one.
func listen(path string, uid, gid uint32) (*os.File, error) {
	fresh := path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := unixsocket.Listen("unix", fresh)
	if err != nil {
		return nil, err
	}
	defer func() { _ = l.Close() }() // the broker has a duplicate
	l.SetUnlinkOnClose(false)
	if err := os.Chmod(fresh, 0o600); err != nil {
		return nil, err
	}
	if err := os.Lchown(fresh, int(uid), int(gid)); err != nil {
		return nil, err
	}
	if err := os.Rename(fresh, path); err != nil {
		return nil, err
	}
	return l.File()
}
