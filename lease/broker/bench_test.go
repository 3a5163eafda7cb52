// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/gpuslice/gpuslice/lease/leasepb"
	"github.com/gpuslice/gpuslice/vmm/cuda"
)

type idle struct{ *fakeDevice }

func (idle) Launch(*cuda.Function, cuda.Shape, []byte, []uint32) error { return nil }

// BenchmarkLaunch measures the broker's own cost per launch: decoding it, and executing it on a device that does nothing.
func BenchmarkLaunch(b *testing.B) {
	const batch = 512
	e := newEngine(idle{newFakeDevice()}, 1<<20)
	broker := &Broker{config: Config{VRAM: 1 << 20}, engine: e, ended: make(chan struct{})}
	m, _, f := e.load([]byte("ptx"))
	if f != nil {
		b.Fatal(f)
	}
	handle, _, f := e.alloc(1024)
	if f != nil {
		b.Fatal(f)
	}
	message := &leasepb.Requests{Quiet: true}
	for i := range batch {
		message.Requests = append(message.Requests, &leasepb.Request{Sequence: uint64(i), Operation: &leasepb.Request_Launch{Launch: &leasepb.Launch{
			Module: m, Kernel: "pointer", Grid: &leasepb.Dim{X: 1}, Block: &leasepb.Dim{X: 32},
			Arguments: []*leasepb.Argument{
				{Value: &leasepb.Argument_Pointer{Pointer: &leasepb.Pointer{Handle: handle}}},
				{Value: &leasepb.Argument_Raw{Raw: make([]byte, 4)}},
			},
		}}})
	}
	text, err := proto.Marshal(message)
	if err != nil {
		b.Fatal(err)
	}
	h := &history{}
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; i < b.N; i += batch {
			var got leasepb.Requests
			if err := proto.Unmarshal(text, &got); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("carry out", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; i < b.N; i += batch {
			if replies, _, _, err := broker.carryOut(h, message, message.Requests); err != nil || len(replies) > 0 {
				b.Fatal(replies, err)
			}
		}
	})
}
