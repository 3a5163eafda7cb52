// SPDX-License-Identifier: Apache-2.0

package containerd

import "google.golang.org/protobuf/encoding/protowire"

// bootstrapParams holds the required fields of containerd.runtime.bootstrap.v1.BootstrapParams
// (api/runtime/bootstrap/v1/bootstrap.proto). Its Go package cannot be linked with containerd 1.7, since its version of the API
// has larger interfaces.
type bootstrapParams struct {
	id, namespace string
	extensions    [][]byte // each a google.protobuf.Any
}

// Field numbers.
const (
	bootstrapID        = 1
	bootstrapNamespace = 2
	bootstrapExtension = 8
	extensionValue     = 1
)

func parseBootstrap(message []byte) (bootstrapParams, error) {
	var p bootstrapParams
	err := eachBytes(message, func(number protowire.Number, value []byte) error {
		switch number {
		case bootstrapID:
			p.id = string(value)
		case bootstrapNamespace:
			p.namespace = string(value)
		case bootstrapExtension:
			return eachBytes(value, func(number protowire.Number, value []byte) error {
				if number == extensionValue {
					p.extensions = append(p.extensions, value)
				}
				return nil
			})
		}
		return nil
	})
	return p, err
}

// eachBytes calls f with each string, bytes or message field of message.
func eachBytes(message []byte, f func(protowire.Number, []byte) error) error {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
		if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
			return protowire.ParseError(n)
		}
		if kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(message)
			if err := f(number, value); err != nil {
				return err
			}
		}
		message = message[n:]
	}
	return nil
}
