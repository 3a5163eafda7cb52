//go:build faults

// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	endian "encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"

	gpu "github.com/gpuslice/gpuslice/lease"
)

type granted struct {
	*gpu.Lease
	l       *leased
	token   string
	session *gpu.Session
	module  *gpu.Module
	buffer  *gpu.Buffer // its first numbers equal count: each use adds 1
	count   float32
	broker  int // pid of its broker, if that is never killed; else 0
}

func (g *granted) open() error {
	if g.session != nil {
		return nil
	}
	ctx, cancel := within(patience)
	defer cancel()
	s, err := gpu.Open(ctx, g.Address, g.TokenFile)
	g.session = s
	return err
}

func (g *granted) close() {
	if g.session != nil {
		_ = g.session.Close()
		g.session = nil
	}
}

func (g *granted) give() {
	g.l.w.Helper()
	g.l.drop(g.ID)
	g.close()
}

func (g *granted) begin() {
	w := g.l.w
	w.Helper()
	w.must(g.open())
	ctx, cancel := within(patience)
	defer cancel()
	var err error
	g.module, err = g.session.Load(ctx, kernels)
	w.must(err)
	g.buffer, err = g.session.Alloc(ctx, leaseBuffer)
	w.must(err)
}

func (g *granted) use() {
	w := g.l.w
	w.Helper()
	ctx, cancel := within(patience)
	defer cancel()
	const n = 4
	w.must(g.module.Launch(ctx, "bias", gpu.Shape{Block: gpu.Dim{X: n}}, g.buffer, float32(1), uint32(n)))
	w.must(g.session.Sync(ctx))
	g.count++
	got := make([]byte, 4*n)
	w.must(g.buffer.Read(ctx, 0, got))
	for i := range n {
		if v := math.Float32frombits(endian.LittleEndian.Uint32(got[4*i:])); v != g.count {
			w.fail("lease %s has %v, the model %v", g.ID, v, g.count)
		}
	}
}

var kernels []byte

// work does each of a session's operations once and returns all memory.
func work(ctx context.Context, s *gpu.Session) error {
	m, err := s.Load(ctx, kernels)
	if err != nil {
		return err
	}
	const size = 4 << 20 // exceeds one message
	b, err := s.Alloc(ctx, size)
	if err != nil {
		return err
	}
	in, out := make([]byte, size), make([]byte, size)
	for i := 0; i < size; i += 4 {
		endian.LittleEndian.PutUint32(in[i:], math.Float32bits(float32(i%64)))
	}
	const n = 16
	if err := b.Write(ctx, 0, in); err != nil {
		return err
	}
	if err := m.Launch(ctx, "scale", gpu.Shape{Block: gpu.Dim{X: n}}, b, float32(2), uint32(n)); err != nil {
		return err
	}
	if err := s.Sync(ctx); err != nil {
		return err
	}
	if err := b.Read(ctx, 0, out); err != nil {
		return err
	}
	for i := 0; i < size; i += 4 {
		want := float32(i % 64)
		if i < 4*n {
			want *= 2
		}
		if got := math.Float32frombits(endian.LittleEndian.Uint32(out[i:])); got != want {
			return fmt.Errorf("%w: number %d is %v, not %v", errWrong, i/4, got, want)
		}
	}
	done, err := s.Submit(ctx, gpu.Submission{
		Image: kernels, Buffers: []gpu.SubmittedBuffer{{Size: 4 * n, Data: in[:4*n], Out: true}},
		Launches: []gpu.SubmittedLaunch{{Kernel: "scale", Shape: gpu.Shape{Block: gpu.Dim{X: n}}, Arguments: []any{gpu.BufferNumber(0), float32(2), uint32(n)}}},
	})
	if err != nil {
		return err
	}
	if len(done) != 1 || string(done[0]) != string(out[:4*n]) {
		return fmt.Errorf("%w: a submission gives %x", errWrong, done)
	}
	shared, err := s.Share(ctx, 1<<20)
	if err != nil {
		return err
	}
	if err := shared.Close(); err != nil {
		return err
	}
	return errors.Join(m.Unload(ctx), b.Free(ctx))
}

var errWrong = errors.New("wrong results")

// worksOn has the client retry its work until it succeeds: it repeats the work that was lost with a broker.
func (g *granted) worksOn() {
	w := g.l.w
	w.Helper()
	w.eventually("the client of lease "+g.ID+" does its work", func() bool {
		w.must(g.open())
		ctx, cancel := within(patience)
		defer cancel()
		err := work(ctx, g.session)
		var lost *gpu.Error
		if err == nil || errors.As(err, &lost) && (lost.Code == gpu.SyncFailed || lost.Code == gpu.InvalidHandle) {
			return err == nil
		}
		if !errors.Is(err, errWrong) && strings.Contains(err.Error(), "share memory with a session") { // not a request
			return false
		}
		w.fail("the client of lease %s: %v", g.ID, err)
		return true
	})
}
