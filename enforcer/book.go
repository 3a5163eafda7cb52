// SPDX-License-Identifier: Apache-2.0

//go:build !shadow

package enforcer

import "github.com/gpuslice/gpuslice/enforcer/admission"

// book is the book of admission. With the build tag shadow, package core decides, too, and a difference panics.
type book = admission.Book

var openBook = admission.New
