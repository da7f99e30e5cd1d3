// Package diag is the one form that an error takes on its way to a person: what
// happened, where in the file and in the model, and a way out.
package diag

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
)

// Error is a message for a person. Empty fields are left out.
type Error struct {
	Code    string `json:"code"` // a stable word for programs: "shape", "parse", "budget", …
	Message string `json:"message"`
	File    string `json:"file,omitempty"`
	Line    int    `json:"line,omitempty"` // from 1
	Col     int    `json:"col,omitempty"`  // from 1
	Layer   string `json:"layer,omitempty"`
	Op      string `json:"op,omitempty"`
	Hint    string `json:"hint,omitempty"` // a way out
}

// Error renders "file:line:col: layer: op: message (hint)".
func (e *Error) Error() string {
	var b strings.Builder
	if e.File != "" {
		b.WriteString(e.File)
		if e.Line > 0 {
			fmt.Fprintf(&b, ":%d", e.Line)
			if e.Col > 0 {
				fmt.Fprintf(&b, ":%d", e.Col)
			}
		}
		b.WriteString(": ")
	}
	if e.Layer != "" {
		b.WriteString("layer " + e.Layer + ": ")
	}
	if e.Op != "" {
		b.WriteString(e.Op + ": ")
	}
	b.WriteString(e.Message)
	if e.Hint != "" {
		b.WriteString("\n  hint: " + e.Hint)
	}
	return b.String()
}

// Errorf makes an Error with a code.
func Errorf(code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// WithHint sets the way out and returns e.
func (e *Error) WithHint(format string, args ...any) *Error {
	e.Hint = fmt.Sprintf(format, args...)
	return e
}

// As finds the Error in err's chain, or makes one of code "error" from err's text.
func As(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{Code: "error", Message: err.Error()}
}

// Throw panics with e. It is for builders whose calls nest (a model written as
// expressions): the error surfaces at the edge that defers Catch.
func Throw(e *Error) { panic(e) }

// Catch, deferred, turns a thrown Error into *err; other panics pass through.
func Catch(err *error) {
	switch r := recover().(type) {
	case nil:
	case *Error:
		*err = r
	default:
		panic(r)
	}
}

// Recovered, deferred, turns a panic, which is always a fault of ours, into *err with the place where
// it came from.
func Recovered(err *error) {
	r := recover()
	if r == nil {
		return
	}
	if e, ok := r.(*Error); ok {
		*err = e
		return
	}
	text := strings.TrimPrefix(fmt.Sprint(r), "BUG: ")
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	panicked := false
	for more := true; more; {
		var f runtime.Frame
		f, more = frames.Next()
		if panicked && strings.HasPrefix(f.Function, "reprise/") {
			text += fmt.Sprintf(" (%s, %s:%d)", f.Function, filepath.Base(f.File), f.Line)
			break
		}
		panicked = panicked || f.Function == "runtime.gopanic"
	}
	*err = Errorf("bug", "BUG: %s", text).WithHint("this is a fault of reprise: keep the model and report it with the output of reprise doctor")
}
