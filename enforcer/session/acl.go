// SPDX-License-Identifier: Apache-2.0

package session

import (
	"encoding/binary"
	"io/fs"
	"slices"

	"golang.org/x/sys/unix"
)

// AllowUsers lets these users read and write a file, besides its owner. It uses an access control list, since a mode would admit all
// others.
func AllowUsers(path string, uids []uint32) error {
	if err := unix.Setxattr(path, "system.posix_acl_access", accessList(uids), 0); err != nil {
		return &fs.PathError{Op: "setxattr", Path: path, Err: err}
	}
	return nil
}

// accessList encodes an access control list as in linux/posix_acl_xattr.h, with the users in order.
func accessList(users []uint32) []byte {
	const (
		version                                = 2
		owner, user, group, mask, other uint16 = 0x01, 0x02, 0x04, 0x10, 0x20
		nothing, both                   uint16 = 0, 6
		undefined                       uint32 = 1<<32 - 1
	)
	list := binary.LittleEndian.AppendUint32(nil, version)
	add := func(tag, may uint16, id uint32) {
		list = binary.LittleEndian.AppendUint16(list, tag)
		list = binary.LittleEndian.AppendUint16(list, may)
		list = binary.LittleEndian.AppendUint32(list, id)
	}
	add(owner, both, undefined)
	for _, uid := range slices.Compact(slices.Sorted(slices.Values(users))) {
		add(user, both, uid)
	}
	add(group, nothing, undefined)
	add(mask, both, undefined)
	add(other, nothing, undefined)
	return list
}
