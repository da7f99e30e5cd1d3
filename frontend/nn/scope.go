package nn

import (
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"reprise/internal/diag"
	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/tensor"
)

// Tensor is a value of a model while it is written.
type Tensor = ir.Value

// graph is what the scopes of one module share while it is built.
type graph struct {
	mod    *ir.Module
	table  *ir.Table
	name   string     // the model's name: layer of what stands outside all scopes
	dtype  dtype.Type // of parameters and activations
	train  bool
	source bool // record source positions of the model's Go code

	step   *ir.Func
	key    *Tensor // of the step, or of the micro-batch; nil until something is random
	rng    int64   // op ids given out so far
	states []*state
	byName map[string]*state
	inputs map[string]*Tensor

	micro, micros int // this pass over the model, of how many
	outputs       []output
	metrics       []output // summed over the micro-batches so far
	after         []func() // run once, after the last micro-batch
}

// state is a value that lives from step to step.
type state struct {
	name, layer string
	role        string
	init        Init
	frozen      bool
	param       *Tensor // the function's parameter
	now         *Tensor // its present value
}

type output struct {
	name string
	v    *Tensor
}

// Scope is a place in a model: a layer path, and the means to add layers, operations
// and state there. Mistakes surface as errors of Train and Infer that name the layer.
type Scope struct {
	g    *graph
	path string
	fn   *ir.Func
}

// In is the scope of a part: its path is that of s, a dot and the name.
func (s *Scope) In(name string) *Scope {
	if s.path != "" {
		name = s.path + "." + name
	}
	return &Scope{s.g, name, s.fn}
}

// Inf is In with a formatted name: s.Inf("layers.%d", i).
func (s *Scope) Inf(format string, args ...any) *Scope { return s.In(fmt.Sprintf(format, args...)) }

// Path is the layer path, "" at the top.
func (s *Scope) Path() string { return s.path }

// Training reports whether a training step is being built: dropout drops, batch norm
// uses the statistics of the batch.
func (s *Scope) Training() bool { return s.g.train }

func (s *Scope) layer() string {
	if s.path == "" {
		return s.g.name
	}
	return s.path
}

func (s *Scope) loc() ir.Loc {
	loc := ir.Loc{Layer: s.layer()}
	if s.g.source {
		loc.File, loc.Line = caller()
	}
	return loc
}

// caller is the source line outside this package that is being run. Only the file's
// base name counts: a model must not depend on the directory that it was built in.
func caller() (string, int) {
	var pcs [32]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs[:])])
	for {
		f, more := frames.Next()
		if !strings.Contains(f.Function, "frontend/nn.") {
			return filepath.Base(f.File), f.Line
		}
		if !more {
			return "", 0
		}
	}
}

// fail throws an error at this layer.
func (s *Scope) fail(code, format string, args ...any) {
	e := diag.Errorf(code, format, args...)
	loc := s.loc()
	e.Layer, e.File, e.Line = loc.Layer, loc.File, loc.Line
	diag.Throw(e)
}

// Op adds any operation of the table by its name (docs/ir.md) and returns its single
// result.
func (s *Scope) Op(name string, operands []*Tensor, attrs ...ir.Attr) *Tensor {
	r := s.Ops(name, operands, attrs...)
	if len(r) != 1 {
		s.fail("op", "operation %s has %d results: use Ops", name, len(r))
	}
	return r[0]
}

// Ops is Op for operations with several results.
func (s *Scope) Ops(name string, operands []*Tensor, attrs ...ir.Attr) []*Tensor {
	attrs = slices.Clone(attrs)
	for i, a := range attrs {
		if t, ok := a.Val.(*tensor.Tensor); ok {
			attrs[i].Val = t.Clone() // the caller's own may change later
		}
	}
	r := slices.Clone(s.builder().Multi(name, operands, nil, attrs...).Results)
	for _, v := range r {
		s.fits(name, v.Type)
	}
	return r
}

// fits refuses a value of more than 64 TiB, whose size might not even be a number.
func (s *Scope) fits(what string, t ir.Type) {
	left := int64(1) << 46 / t.DType.Size()
	for _, n := range t.Shape {
		if n < 0 {
			s.fail("shape", "%s: %v has a negative size", what, t)
		}
		if left /= max(n, 1); left == 0 {
			s.fail("shape", "%s: %v is too large", what, t)
		}
	}
}

func (s *Scope) builder() *ir.Builder { return ir.NewBuilder(s.g.table, s.fn.Body, s.loc()) }

// random adds an operation that draws random numbers, under an id of its own.
func (s *Scope) random(name string, operands []*Tensor, attrs ...ir.Attr) *Tensor {
	id := s.g.rng
	s.g.rng++
	return s.Op(name, operands, append(attrs, ir.A("rng", id))...)
}

// Key is the generator key of the step (and of the micro-batch).
func (s *Scope) Key() *Tensor {
	g := s.g
	if s.fn != g.step {
		return s.fn.Body.Params[0] // of @init
	}
	if g.key != nil {
		return g.key
	}
	p := s.fn.Param("key")
	if p == nil {
		p = s.fn.Body.AddParam("key", ir.T(dtype.Key), ir.A("role", ir.RoleKey))
	}
	g.key = p
	if g.micros > 1 {
		top := &Scope{g, "", s.fn}
		g.key = top.Op("key_micro", []*Tensor{p, top.Int(dtype.I32, int64(g.micro))})
	}
	return g.key
}

// Input declares an input of the step, its first axis being the batch. Where a step
// runs in micro-batches the result is the micro-batch, so later code takes sizes from it.
func (s *Scope) Input(name string, d dtype.Type, shape []int64, feed ...Feed) *Tensor {
	g := s.g
	shape = slices.Clone(shape) // the caller's own may change later
	p := g.inputs[name]
	if p == nil {
		s.claim(name)
		attrs := []ir.Attr{ir.A("role", ir.RoleInput)}
		if len(feed) > 0 {
			attrs = append(attrs, ir.A("feed", string(feed[0])))
		}
		s.fits("input "+name, ir.T(d, shape...))
		p = s.fn.Body.AddParam(name, ir.T(d, shape...), attrs...)
		g.inputs[name] = p
	} else if want := ir.T(d, shape...); !p.Type.Equal(want) {
		s.fail("shape", "input %q is declared as %v and as %v", name, p.Type, want)
	}
	if g.micros == 1 {
		return p
	}
	if p.Type.Rank() == 0 || p.Type.Shape[0]%int64(g.micros) != 0 {
		s.fail("shape", "input %q: %v can't be cut into %d micro-batches along its first axis", name, p.Type, g.micros)
	}
	n := p.Type.Shape[0] / int64(g.micros)
	return s.Slice(p, 0, int64(g.micro)*n, int64(g.micro+1)*n)
}

// Feed says where the data of an input come from when a compiled model is not given
// an array of the input's name.
type Feed string

// The feeds. All but the first two are drawn from the seed.
const (
	Normal01  Feed = "normal"  // N(0, 1)
	Uniform01 Feed = "uniform" // [0, 1)
)

// Tokens feeds windows of a stream of tokens or bytes below vocab; the last axis is time.
func Tokens(vocab int64) Feed { return Feed(fmt.Sprintf("tokens:%d", vocab)) }

// Targets feeds the windows of Tokens, one position later.
func Targets(vocab int64) Feed { return Feed(fmt.Sprintf("targets:%d", vocab)) }

// Labels feeds integers 0 … n−1.
func Labels(n int64) Feed { return Feed(fmt.Sprintf("uniform_int:%d", n)) }

// claim refuses a second use of a name.
func (s *Scope) claim(name string) {
	if s.g.byName[name] != nil || s.g.step.Param(name) != nil {
		s.fail("name", "%q is declared twice", name)
	}
}

// DType is the element type of the model's parameters and activations.
func (s *Scope) DType() dtype.Type { return s.g.dtype }

// Param declares a trained parameter of the scope, of the model's element type: its name
// is the path, a dot and the name. Declared again in another micro-batch it is the same
// parameter.
func (s *Scope) Param(name string, shape []int64, init Init) *Tensor {
	return s.ParamOf(name, s.g.dtype, shape, init)
}

// ParamOf is Param with an element type of its own, such as f32 in a model of bf16.
func (s *Scope) ParamOf(name string, d dtype.Type, shape []int64, init Init) *Tensor {
	if !d.IsFloat() {
		s.fail("shape", "parameter %q of %s: only floats can be trained", s.In(name).path, d)
	}
	return s.state(name, ir.RoleParam, d, shape, init).now
}

// Frozen is Param for weights that are not trained: they have no gradient and no
// optimizer state.
func (s *Scope) Frozen(name string, shape []int64, init Init) *Tensor {
	st := s.state(name, ir.RoleParam, s.g.dtype, shape, init)
	st.frozen = true
	return st.now
}

// Buffer declares state that is not trained (running statistics, counters); Update
// gives it a new value.
func (s *Scope) Buffer(name string, d dtype.Type, shape []int64, init Init) *Tensor {
	return s.state(name, ir.RoleBuffer, d, shape, init).now
}

// Update sets the value that the buffer of that name in this scope has after this
// micro-batch: the next one reads it, and after the last one it is the step's result. So
// what is counted or averaged sees every micro-batch once, in order.
func (s *Scope) Update(name string, v *Tensor) {
	full := s.In(name).path
	st := s.g.byName[full]
	if st == nil || st.role != ir.RoleBuffer {
		s.fail("name", "%q is not a buffer", full)
	}
	if !v.Type.Equal(st.param.Type) {
		s.fail("shape", "buffer %q of %v is updated with %v", full, st.param.Type, v.Type)
	}
	st.now = v
}

// Count declares a buffer that starts at 0, and adds v to it: a counter of tokens, say.
func (s *Scope) Count(name string, v *Tensor) {
	s.Update(name, s.Add(s.Buffer(name, v.Type.DType, v.Type.Shape, Zeros), v))
}

// Now is the value that the buffer of that name in this scope has by now, and before the
// one that it had before the step.
func (s *Scope) Now(name string) (now, before *Tensor) {
	full := s.In(name).path
	st := s.g.byName[full]
	if st == nil || st.role != ir.RoleBuffer {
		s.fail("name", "%q is not a buffer", full)
	}
	return st.now, st.param
}

// After runs f once in a training step, after its last micro-batch and before the
// optimizer: state that changes once a step is updated there, however many micro-batches
// the step has.
func (s *Scope) After(f func()) {
	if s.g.train && s.g.micro == 0 {
		s.g.after = append(s.g.after, f)
	}
}

// Metric names an f32[] result of the step that is no state: the mean over the step's
// micro-batches.
func (s *Scope) Metric(name string, v *Tensor) {
	if !v.Type.Equal(ir.T(dtype.F32)) {
		s.fail("shape", "metric %q must be f32[], got %v", name, v.Type)
	}
	i := slices.IndexFunc(s.g.metrics, func(o output) bool { return o.name == name })
	switch {
	case i < 0:
		s.free(name)
		s.g.metrics = append(s.g.metrics, output{name, v})
	case s.g.micro == 0:
		s.fail("name", "metric %q is declared twice", name)
	default:
		s.g.metrics[i].v = s.Add(s.g.metrics[i].v, v)
	}
}

func (s *Scope) state(name, role string, d dtype.Type, shape []int64, init Init) *state {
	g, full := s.g, s.In(name).path
	t := ir.T(d, slices.Clone(shape)...)
	if st := g.byName[full]; st != nil {
		if g.micro == 0 {
			s.fail("name", "%q is declared twice (keep the first tensor to share a weight)", full)
		}
		if !st.param.Type.Equal(t) {
			s.fail("shape", "%q is declared as %v and as %v", full, st.param.Type, t)
		}
		return st
	}
	s.claim(full)
	for _, n := range shape {
		if n <= 0 {
			s.fail("shape", "%q: sizes must be positive, got %v", full, t)
		}
	}
	s.fits(full, t)
	st := &state{name: full, layer: s.layer(), role: role, init: init}
	st.param = s.fn.Body.AddParam(full, t, ir.A("role", role))
	st.now = st.param
	g.states = append(g.states, st)
	g.byName[full] = st
	return st
}

// Output names a result of the step.
func (s *Scope) Output(name string, v *Tensor) {
	if s.g.micros > 1 {
		name = fmt.Sprintf("%s.%d", name, s.g.micro)
	}
	s.free(name)
	s.g.outputs = append(s.g.outputs, output{name, v})
}

// free refuses the name of a result that there is.
func (s *Scope) free(name string) {
	same := func(o output) bool { return o.name == name }
	if name == "loss" || s.g.byName[name] != nil || slices.ContainsFunc(s.g.outputs, same) || slices.ContainsFunc(s.g.metrics, same) {
		s.fail("name", "output %q: the name is taken", name)
	}
}
