// SPDX-License-Identifier: Apache-2.0

// Package session has the parts that only sessions have: tokens, the identity of a caller, and users' limits. It takes no decision about a slice, and writes only a token's file and a socket's access control list.
package session

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"os"
	"path/filepath"

	"github.com/gpuslice/gpuslice/api"
)

// Token is the SHA-256 of a session's token, or zero without one. A token admits processes that do not descend from the session's first
// process: those of another terminal, of a batch system, or of another user with the token. It is created with the session, in a file of
// the session's directory that only the session's user can read, and removed with that directory. The enforcer keeps only the hash, in
// memory and in its state.
type Token [sha256.Size]byte

// NewToken creates a session's token and its file in dir. The file belongs to the user and group, or to this process's if they are
// negative.
func NewToken(dir, id string, uid, gid int) (Token, error) {
	token := make([]byte, sha256.Size)
	if _, err := rand.Read(token); err != nil {
		return Token{}, err
	}
	file, err := os.OpenFile(filepath.Join(dir, api.TokenName), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return Token{}, err
	}
	_, err = file.WriteString(api.FormatTokenFile(id, token))
	if uid >= 0 {
		err = errors.Join(err, file.Chown(uid, gid))
	}
	return sha256.Sum256(token), errors.Join(err, file.Close())
}

// Is reports whether a token is the session's. It compares in constant time.
func (t Token) Is(shown api.Token) bool {
	bytes, ok := shown.Bytes()
	sum := sha256.Sum256(bytes)
	return subtle.ConstantTimeCompare(sum[:], t[:]) == 1 && ok
}
