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

// runTrace compares two programs value by value; file takes the whole trace, if it is given.
func runTrace(m *frontend.Model, planned, all trace.Side, o trace.Options, file string) (*traced, error) {
	var f *os.File
	if file != "" {
		var err error
		if f, err = os.Create(file); err != nil {
			return nil, traceFileError(err)
		}
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

func traceFileError(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return diag.Errorf("io", "cannot write the trace to %s: %v", p.Path, p.Err).WithHint("give --trace-file a place that can be written")
	}
	return diag.Errorf("io", "cannot write the trace: %v", err)
}
