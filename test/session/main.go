// SPDX-License-Identifier: Apache-2.0

// Command session compares GPU sessions with their parts, on a card or on the simulated driver:
//
//	session speed [-quick] [-bin DIR] [-rows FILE]   prints ratios within one run; writes the points of the curve as JSON
//	session acquire [-quick] SOCKET                  compares a first kernel in a new lease with that of a plain program
//	session echo SOCKET                              answers each message of a stream with an empty one
//	session least SOCKET                             like echo, and performs the launches and syncs of each message
//	session plain                                    runs a first kernel: context, module, launch
//
// speed starts echo, least and plain. The exit status is 1 on an error; it does not depend on times.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"

	"google.golang.org/grpc"

	"github.com/gpuslice/gpuslice/lease/leasepb"
	"github.com/gpuslice/gpuslice/vmm/cuda"
)

const program = `.version 7.0
.target sm_50
.address_size 64
.visible .entry nothing()
{
	ret;
}
`

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "session:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("what to do is missing: speed, acquire, echo, least and plain are accepted")
	}
	flags := flag.NewFlagSet("session "+args[0], flag.ExitOnError)
	quick := flags.Bool("quick", false, "a tenth of it")
	bin := flags.String("bin", "bin", "the directory of gpuslice and gpuslice-broker")
	rows := flags.String("rows", "", "a file for the points of the curve")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	switch args[0] {
	case "speed":
		return speed(*bin, *quick, *rows)
	case "acquire":
		return acquire(flags.Arg(0), *quick)
	case "echo":
		return echo(flags.Arg(0), nil)
	case "least":
		n, err := openNative()
		if err != nil {
			return err
		}
		return echo(flags.Arg(0), n)
	case "plain":
		return plain()
	}
	return fmt.Errorf("%q is unknown: speed, acquire, echo, least and plain are accepted", args[0])
}

func plain() error {
	n, err := openNative()
	if err != nil {
		return err
	}
	if err := n.once(); err != nil {
		return err
	}
	fmt.Println("launched")
	return nil
}

type native struct {
	*cuda.Stream
	device   *cuda.Device
	function *cuda.Function
}

func openNative() (*native, error) {
	device, err := cuda.Open(0)
	if err != nil {
		return nil, err
	}
	n := &native{device: device}
	if n.Stream, err = device.OpenStream(); err != nil {
		return nil, err
	}
	m, _, err := n.Load([]byte(program))
	if err == nil {
		n.function, err = n.Find(m, "nothing")
	}
	return n, err
}

func (n *native) launch() error {
	one := [3]uint32{1, 1, 1}
	return n.Launch(n.function, cuda.Shape{Grid: one, Block: one}, nil, nil)
}

func (n *native) once() error {
	if err := n.launch(); err != nil {
		return err
	}
	return n.Sync()
}

type echoServer struct {
	leasepb.UnimplementedSessionServer
	native *native // nil: makes no driver calls
}

func (s echoServer) Work(stream leasepb.Session_WorkServer) error {
	for {
		message, err := stream.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		for _, r := range message.GetRequests() {
			if err := s.perform(r); err != nil {
				return err
			}
		}
		if err := stream.Send(&leasepb.Replies{}); err != nil {
			return err
		}
	}
}

func (s echoServer) perform(r *leasepb.Request) error {
	switch {
	case s.native == nil:
		return nil
	case r.GetLaunch() != nil:
		return s.native.launch()
	}
	return s.native.Sync()
}

func echo(path string, n *native) error {
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.InitialWindowSize(4<<20), grpc.InitialConnWindowSize(8<<20),
		grpc.ReadBufferSize(128<<10), grpc.WriteBufferSize(128<<10)) // like the broker
	leasepb.RegisterSessionServer(server, echoServer{native: n})
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1)) // returns when the parent ends
		server.Stop()
	}()
	fmt.Println("listening")
	return server.Serve(listener)
}
