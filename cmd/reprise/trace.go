package main

import (
	"errors"
	"os"

	"reprise/frontend"
	"reprise/internal/diag"
	"reprise/internal/trace"
)

// traced is what verify --trace compared; a divergence is an error.
type traced struct {
	Steps  int   `json:"steps"`
	Values int64 `json:"values"`
	Clones int64 `json:"clones"`
	Reads  int64 `json:"reads"`
}

// runTrace compares two programs value by value; f takes the whole trace, if it is not nil.
func runTrace(m *frontend.Model, planned, all trace.Side, o trace.Options, f *os.File) (*traced, error) {
	if f != nil {
		o.File = f
	}
	r, err := trace.Compare(m, planned, all, o)
	if f != nil {
		if e := f.Close(); err == nil && e != nil {
			err = traceFileError(e)
		}
	}
	switch {
	case err != nil:
		return nil, err
	case r.Divergence != nil:
		return nil, r.Divergence
	}
	return &traced{r.Steps, r.Values, r.Clones, r.Reads}, nil
}

// createTrace opens the file of a trace, before anything is compiled; nil for no file.
func createTrace(name string) (*os.File, error) {
	if name == "" {
		return nil, nil
	}
	f, err := os.Create(name)
	if err != nil {
		return nil, traceFileError(err)
	}
	return f, nil
}

func traceFileError(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return diag.Errorf("io", "cannot write the trace to %s: %v", p.Path, p.Err).WithHint("give --trace-file a place that can be written")
	}
	return diag.Errorf("io", "cannot write the trace: %v", err)
}
