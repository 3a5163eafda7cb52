// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/gpuslice/gpuslice/lease"
)

//go:embed kernels.ptx
var kernels []byte

// block is the number of threads per block. Kernels ignore indices from n on.
const block = 64

func threads(n int) lease.Shape {
	return lease.Shape{Grid: lease.Dim{X: uint32((n + block - 1) / block)}, Block: lease.Dim{X: block}}
}

func upload(ctx context.Context, s *lease.Session, numbers []float32) (*lease.Buffer, error) {
	b, err := s.Alloc(ctx, uint64(4*len(numbers)))
	if err != nil {
		return nil, err
	}
	return b, write(ctx, b, numbers)
}

func write(ctx context.Context, b *lease.Buffer, numbers []float32) error {
	return b.Write(ctx, 0, lease.Bytes(numbers))
}

// download waits for earlier launches.
func download(ctx context.Context, b *lease.Buffer) ([]float32, error) {
	numbers := make([]float32, b.Size()/4)
	return numbers, b.Read(ctx, 0, lease.Bytes(numbers))
}

func free(ctx context.Context, m *lease.Module, buffers ...*lease.Buffer) error {
	err := m.Unload(ctx)
	for _, b := range buffers {
		err = errors.Join(err, b.Free(ctx))
	}
	return err
}

// counted returns 0, 1, 2, ...
func counted(n int) []float32 {
	numbers := make([]float32, n)
	for i := range numbers {
		numbers[i] = float32(i)
	}
	return numbers
}

// recipe runs two kernels on one buffer: 0, 1 and 100 become 10, 12 and 210.
func recipe(ctx context.Context, s *lease.Session) (string, error) {
	const n = 101
	buffer, err := upload(ctx, s, counted(n))
	if err != nil {
		return "", err
	}
	module, err := s.Load(ctx, kernels)
	if err != nil {
		return "", err
	}
	// The launches are asynchronous.
	if err := module.Launch(ctx, "scale", threads(n), buffer, float32(2), uint32(n)); err != nil {
		return "", err
	}
	if err := module.Launch(ctx, "bias", threads(n), buffer, float32(10), uint32(n)); err != nil {
		return "", err
	}
	if err := s.Sync(ctx); err != nil {
		return "", err
	}
	got, err := download(ctx, buffer)
	if err != nil {
		return "", err
	}
	for i, v := range got {
		if want := float32(2*i + 10); v != want {
			return "", fmt.Errorf("number %d is %v, not %v", i, v, want)
		}
	}
	return fmt.Sprintf("%v %v %v", got[0], got[1], got[100]), free(ctx, module, buffer)
}

// inference keeps weights on the card while several goroutines send requests, each with its own buffers.
func inference(ctx context.Context, s *lease.Session) (string, error) {
	const n, workers, requests = 64, 4, 25
	matrix := make([]float32, n*n)
	for i := range matrix {
		matrix[i] = float32(i*7%13 - 6)
	}
	weights, err := upload(ctx, s, matrix)
	if err != nil {
		return "", err
	}
	module, err := s.Load(ctx, kernels)
	if err != nil {
		return "", err
	}
	answer := func(in, out *lease.Buffer, seed int) error {
		input, want := make([]float32, n), make([]float32, n)
		for i := range input {
			input[i] = float32((i*seed)%11 - 5)
		}
		for row := range want { // exact in float32: the numbers are small integers
			for i, v := range input {
				want[row] += matrix[row*n+i] * v
			}
		}
		if err := write(ctx, in, input); err != nil {
			return err
		}
		if err := module.Launch(ctx, "product", threads(n), weights, in, out, uint32(n)); err != nil {
			return err
		}
		got, err := download(ctx, out)
		if err != nil {
			return err
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("request %d: %v, not %v", seed, got, want)
		}
		return nil
	}
	failures := make([]error, workers)
	var all sync.WaitGroup
	for worker := range workers {
		all.Go(func() {
			in, err := s.Alloc(ctx, 4*n)
			if err != nil {
				failures[worker] = err
				return
			}
			out, err := s.Alloc(ctx, 4*n)
			if err != nil {
				failures[worker] = errors.Join(err, in.Free(ctx))
				return
			}
			for i := range requests {
				if err = answer(in, out, worker*requests+i+1); err != nil {
					break
				}
			}
			failures[worker] = errors.Join(err, in.Free(ctx), out.Free(ctx))
		})
	}
	all.Wait()
	if err := errors.Join(failures...); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d requests on the same weights", workers*requests), free(ctx, module, weights)
}

// solver relaxes a rod until it converges. The rod stays on the card; the host reads one number every 100 steps.
func solver(ctx context.Context, s *lease.Session) (string, error) {
	const n, every, maxSteps = 32, 100, 100_000
	rod := make([]float32, n)
	rod[n-1] = 1
	from, err := upload(ctx, s, rod)
	if err != nil {
		return "", err
	}
	to, err := upload(ctx, s, rod)
	if err != nil {
		return "", err
	}
	moved, err := s.Alloc(ctx, 4)
	if err != nil {
		return "", err
	}
	module, err := s.Load(ctx, kernels)
	if err != nil {
		return "", err
	}
	steps := 0
	for change := float32(1); change > 1e-6; {
		if steps >= maxSteps {
			return "", fmt.Errorf("it still moves after %d steps", steps)
		}
		for range every {
			if err := moved.Set(ctx, 0, 4, 0); err != nil {
				return "", err
			}
			if err := module.Launch(ctx, "relax", threads(n), from, to, moved, uint32(n)); err != nil {
				return "", err
			}
			from, to = to, from
			steps++
		}
		last, err := download(ctx, moved)
		if err != nil {
			return "", err
		}
		change = last[0]
	}
	got, err := download(ctx, from)
	if err != nil {
		return "", err
	}
	for i, v := range got {
		if want := float64(i) / (n - 1); math.Abs(float64(v)-want) > 1e-3 {
			return "", fmt.Errorf("point %d is at %v, not %v, after %d steps", i, v, want, steps)
		}
	}
	return fmt.Sprintf("a straight line after %d steps", steps), free(ctx, module, from, to, moved)
}

// modules runs kernels of the same name from three modules on one buffer. Unloading one does not affect the others.
func modules(ctx context.Context, s *lease.Session) (string, error) {
	const n = 100
	buffer, err := upload(ctx, s, counted(n))
	if err != nil {
		return "", err
	}
	var loaded []*lease.Module
	for _, operation := range []string{"add.f32", "mul.f32", "sub.f32"} {
		m, err := s.Load(ctx, bytes.ReplaceAll(kernels, []byte("add.f32"), []byte(operation)))
		if err != nil {
			return "", err
		}
		loaded = append(loaded, m)
	}
	check := func(want func(i float32) float32) error {
		got, err := download(ctx, buffer)
		for i, v := range got {
			if err == nil && v != want(float32(i)) {
				err = fmt.Errorf("number %d is %v, not %v", i, v, want(float32(i)))
			}
		}
		return err
	}
	for i, m := range loaded {
		if err := m.Launch(ctx, "bias", threads(n), buffer, float32(i+2), uint32(n)); err != nil {
			return "", err
		}
	}
	if err := check(func(i float32) float32 { return (i+2)*3 - 4 }); err != nil {
		return "", err
	}
	if err := loaded[1].Unload(ctx); err != nil {
		return "", err
	}
	if err := loaded[1].Launch(ctx, "bias", threads(n), buffer, float32(1), uint32(n)); err != nil {
		return "", err
	}
	var refused *lease.Error
	if err := s.Sync(ctx); !errors.As(err, &refused) {
		return "", errors.Join(errors.New("a launch of a module that is gone is not refused"), err)
	}
	if err := loaded[2].Launch(ctx, "bias", threads(n), buffer, float32(1), uint32(n)); err != nil {
		return "", err
	}
	if err := check(func(i float32) float32 { return (i+2)*3 - 5 }); err != nil {
		return "", err
	}
	return fmt.Sprintf("three modules on one buffer; of one that is gone: %v", refused.Code),
		errors.Join(loaded[0].Unload(ctx), free(ctx, loaded[2], buffer))
}

// submit performs the recipe in one request.
func submit(ctx context.Context, s *lease.Session) (string, error) {
	const n = 101
	out, err := s.Submit(ctx, lease.Submission{
		Image:   kernels,
		Buffers: []lease.SubmittedBuffer{{Size: 4 * n, Data: lease.Bytes(counted(n)), Out: true}},
		Launches: []lease.SubmittedLaunch{
			{Kernel: "scale", Shape: threads(n), Arguments: []any{lease.BufferNumber(0), float32(2), uint32(n)}},
			{Kernel: "bias", Shape: threads(n), Arguments: []any{lease.BufferNumber(0), float32(10), uint32(n)}},
		},
	})
	if err != nil {
		return "", err
	}
	if len(out) != 1 || len(out[0]) != 4*n {
		return "", fmt.Errorf("%d buffers came back", len(out))
	}
	got := make([]float32, n)
	copy(lease.Bytes(got), out[0])
	if got[0] != 10 || got[1] != 12 || got[100] != 210 {
		return "", fmt.Errorf("%v %v %v, not 10 12 210", got[0], got[1], got[100])
	}
	return fmt.Sprintf("%v %v %v", got[0], got[1], got[100]), nil
}
