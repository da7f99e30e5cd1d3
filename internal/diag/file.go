package diag

import (
	"errors"
	"io/fs"
)

// Cause is what the system said, without the call and the paths around it.
func Cause(err error) error {
	for e := errors.Unwrap(err); e != nil; e = errors.Unwrap(err) {
		err = e
	}
	return err
}

// Unreadable is the error, of code "file", of a file that can't be read.
func Unreadable(path string, err error) *Error {
	e := Errorf("file", "can't read it: %v", Cause(err)).WithHint("give a file that can be read")
	switch {
	case errors.Is(err, fs.ErrNotExist):
		e.Hint = "look at the path: it is taken from the working directory"
	case errors.Is(err, fs.ErrPermission):
		e.Hint = "look at its permissions"
	}
	e.File = path
	return e
}

// Unwritable is the error, of code "io", of a file or directory that can't be written.
func Unwritable(path string, err error) *Error {
	e := Errorf("io", "can't write it: %v", Cause(err)).WithHint("give a path in a directory that exists and may be written, with room on its disk")
	e.File = path
	return e
}
