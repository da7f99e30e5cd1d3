// Package opinfo reads gradient cases made from PyTorch's operator samples (an
// index.json with one entry a case, and NAME.npz with inputs, outputs, cotangents and
// gradients), writes the operator in ops of the IR, and compares what comes out.
package opinfo

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"reprise/internal/diag"
	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/interp"
	"reprise/ir/tensor"
	"reprise/passes/autodiff"
)

// Case is one entry of the index.
type Case struct {
	Name     string         `json:"name"`
	Op       string         `json:"op"` // PyTorch's name, e.g. "nn.functional.conv2d"
	Variant  string         `json:"variant"`
	Input    any            `json:"input"` // the first argument: {"tensor": i}, a list of them, …
	Args     []any          `json:"args"`
	Kwargs   map[string]any `json:"kwargs"`
	DiffOuts []int          `json:"diff_outs"` // outputs that have cotangents
	Grads    []int          `json:"grads"`     // inputs that have gradients

	dir string
}

// Status of a case that was run.
type Status string

// Statuses. Refused: the program named what it does not support.
const (
	Pass    Status = "pass"
	Refused Status = "refused"
	Fail    Status = "fail"
)

// Result of a case.
type Result struct {
	Case      *Case
	Status    Status
	Reason    string  // why it was refused or failed
	MaxRelErr float64 // greatest |got-want| / max(1, |want|) over outputs and gradients
}

// Load reads the index of a directory, and lists the cases whose data is there.
func Load(dir string) ([]*Case, error) {
	data, err := os.ReadFile(filepath.Join(dir, "index.json"))
	if err != nil {
		return nil, err
	}
	var index struct {
		Cases []*Case `json:"cases"`
	}
	if err := json.Unmarshal(fixInfinities(data), &index); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, "index.json"), err)
	}
	var cases []*Case
	for _, c := range index.Cases {
		c.dir = dir
		if _, err := os.Stat(c.path()); err == nil {
			cases = append(cases, c)
		}
	}
	return cases, nil
}

func (c *Case) path() string { return filepath.Join(c.dir, c.Name+".npz") }

// tolerance of |got-want| / max(1, |want|). All is f64 here; the samples hold sums of at
// most some hundred terms and ill-conditioned quotients.
const tolerance = 1e-8

// Run builds, differentiates and interprets a case.
func Run(c *Case, table *ir.Table) Result {
	r := Result{Case: c}
	if err := r.run(table); err != nil {
		r.Reason = err.Error()
		r.Status = Fail
		if diag.As(err).Code == "refused" {
			r.Status = Refused
		}
		return r
	}
	if r.Status = Pass; r.Reason != "" {
		r.Status = Fail
	}
	return r
}

func (r *Result) run(table *ir.Table) error {
	c := r.Case
	data, err := readNPZ(c.path())
	if err != nil {
		return err
	}
	m, args, err := build(c, table, data)
	if err != nil {
		return err
	}
	if err := ir.Verify(m); err != nil {
		return err
	}
	if err := autodiff.Run(m, table); err != nil {
		return err
	}
	if err := ir.Verify(m); err != nil {
		return err
	}
	out, err := interp.RunNamed(m.Func("step"), args, interp.Options{})
	if err != nil {
		return err
	}
	for _, k := range c.DiffOuts {
		r.compare(fmt.Sprintf("out%d", k), out, data)
	}
	for _, k := range c.Grads {
		r.compare(fmt.Sprintf("grad%d", k), out, data)
	}
	return nil
}

// compare notes the greatest error of one result, and as the reason where it is too great.
func (r *Result) compare(name string, out, data map[string]*tensor.Tensor) {
	got, want := out[name], data[name]
	switch {
	case want == nil:
		return
	case got == nil:
		r.Reason = name + " is missing"
		return
	case fmt.Sprint(got.Shape) != fmt.Sprint(want.Shape):
		r.Reason = fmt.Sprintf("%s has shape %v, want %v", name, got.Shape, want.Shape)
		return
	}
	for i := range want.Len() {
		g, w := got.Float(i), want.Float(i)
		if g == w || math.IsNaN(g) && math.IsNaN(w) {
			continue
		}
		err := math.Abs(g-w) / math.Max(1, math.Abs(w))
		if !(err <= tolerance) && r.Reason == "" {
			r.Reason = fmt.Sprintf("%s[%d] is %v, want %v", name, i, g, w)
		}
		r.MaxRelErr = math.Max(r.MaxRelErr, err)
	}
}

// build makes @step of a case: parameters in0 …, results out_k and grad_k, the loss being
// the outputs' sum weighted by the cotangents.
func build(c *Case, table *ir.Table, data map[string]*tensor.Tensor) (m *ir.Module, args map[string]*tensor.Tensor, err error) {
	defer diag.Catch(&err)
	m = ir.NewModule(c.Name)
	f := m.NewFunc("step")
	b := &builder{Builder: ir.NewBuilder(table, f.Body, ir.Loc{Layer: c.Op}), c: c}
	args = map[string]*tensor.Tensor{}
	for i := 0; data[fmt.Sprintf("in%d", i)] != nil; i++ {
		name := fmt.Sprintf("in%d", i)
		t := data[name]
		args[name] = t
		b.data = append(b.data, t)
		b.in = append(b.in, f.Body.AddParam(name, ir.T(t.DType, t.Shape...)))
	}
	write := operators()[c.Op]
	if write == nil {
		refuse("PyTorch's operator %s", c.Op)
	}
	outs := write(b)
	var loss *ir.Value
	for _, k := range c.DiffOuts {
		if k >= len(outs) {
			refuse("output %d of %s", k, c.Op)
		}
		f.Results = append(f.Results, fmt.Sprintf("out%d", k))
		f.Body.Results = append(f.Body.Results, outs[k])
		cot := data[fmt.Sprintf("cot%d", k)]
		if cot == nil {
			continue
		}
		if cot.Len() != outs[k].Type.Len() {
			return nil, nil, fmt.Errorf("output %d is %v, want shape %v", k, outs[k].Type, cot.Shape)
		}
		w := b.Op("constant", nil, ir.A("value", cot.Reshaped(outs[k].Type.Shape...)))
		p := b.sum(b.bin("mul", outs[k], w), allAxes(outs[k]), false)
		if loss == nil {
			loss = p
		} else {
			loss = b.bin("add", loss, p)
		}
	}
	var xs []*ir.Value
	for _, k := range c.Grads {
		xs = append(xs, b.in[k])
		f.Results = append(f.Results, fmt.Sprintf("grad%d", k))
	}
	if len(xs) > 0 {
		g := b.Multi("gradient", append([]*ir.Value{loss}, xs...), nil)
		f.Body.Results = append(f.Body.Results, g.Results...)
	}
	return m, args, nil
}

// refuse says what is not supported.
func refuse(format string, args ...any) {
	diag.Throw(diag.Errorf("refused", "not supported: "+format, args...))
}

// isFloat reports whether a tensor takes part in differentiation.
func isFloat(v *ir.Value) bool { return v.Type.DType == dtype.F64 || v.Type.DType == dtype.F32 }
