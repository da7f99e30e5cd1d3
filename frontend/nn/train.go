package nn

import (
	"fmt"
	"slices"
	"strings"

	"reprise/internal/diag"
	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/ops"
)

// Model describes a model. Each function is run once per module (Loss once per
// micro-batch) and must do the same every time.
type Model struct {
	Name    string
	DType   dtype.Type             // of parameters and activations: f32 (also if left out), bf16 or f16
	Loss    func(s *Scope) *Tensor // the training step's loss, f32[]
	Predict func(s *Scope)         // the inference step: names its results with Output
}

// Recipe is how a model is trained.
type Recipe struct {
	Optimizer Optimizer
	Schedule  Schedule
	Clip      float64 // greatest global norm of the gradients; 0: not clipped
	Micro     int     // micro-batches a step, whose gradients are added up; 0 and 1: one
	EMA       float64 // decay of a moving average of each parameter, f32 state "/ema"; 0: none
	Scale     LossScale
}

// Train makes the training module of m: @init(key) gives the state, @step the loss and
// the new state. Errors are *diag.Error.
func Train(m Model, r Recipe) (*ir.Module, error) { return train(m, r, true) }

// Infer makes the inference module of m. Errors are *diag.Error.
func Infer(m Model) (*ir.Module, error) { return infer(m, true) }

func train(m Model, r Recipe, source bool) (mod *ir.Module, err error) {
	defer diag.Catch(&err)
	if m.Loss == nil {
		diag.Throw(diag.Errorf("model", "model %q has no loss, so it can't be trained", m.Name))
	}
	g := newGraph(m, true, source)
	g.micros = max(1, r.Micro)
	s := &Scope{g, "", g.step}
	scale := r.Scale.start(s)
	var total *Tensor
	var grads []*Tensor
	for g.micro = range g.micros {
		g.key = nil
		loss := m.Loss(s)
		if loss == nil || !loss.Type.Equal(ir.T(dtype.F32)) {
			s.fail("shape", "the loss must be f32[], got %v", typeOf(loss))
		}
		if g.micros > 1 {
			loss = s.Scale(loss, 1/float64(g.micros))
		}
		gs := s.gradients(scale.up(loss))
		if g.micro == 0 {
			total, grads = loss, gs
			continue
		}
		total = s.Add(total, loss)
		for i, st := range trained(g) {
			l := &Scope{g, st.layer, g.step}
			grads[i] = l.Add(l.wide(grads[i]), l.wide(gs[i]))
		}
	}
	g.micro = 0 // state declared from here on is new
	for _, f := range g.after {
		f()
	}
	s.optimize(r, grads, scale)
	return g.finish(total), nil
}

func infer(m Model, source bool) (mod *ir.Module, err error) {
	defer diag.Catch(&err)
	if m.Predict == nil {
		diag.Throw(diag.Errorf("model", "model %q has no inference step", m.Name))
	}
	g := newGraph(m, false, source)
	s := &Scope{g, "", g.step}
	m.Predict(s)
	if len(g.outputs) == 0 {
		s.fail("model", "the inference step has no output")
	}
	return g.finish(nil), nil
}

// AddTraining turns a module whose @step computes "loss" from parameters of role param
// into a training module: gradients, clipping, optimizer, and the optimizer's state in
// @init. The module is changed in place. Its step must not have results for its
// parameters, and micro-batches are not made.
func AddTraining(mod *ir.Module, r Recipe) (err error) {
	defer diag.Catch(&err)
	step := mod.Func("step")
	if step == nil || step.Result("loss") == nil {
		diag.Throw(diag.Errorf("model", "module %q can't be trained: it has no @step with a result %%loss", mod.Name).
			WithHint("an inference program is compiled without --train and verified with --infer; nn.Train makes a training step"))
	}
	if r.Micro > 1 {
		diag.Throw(diag.Errorf("model", "module %q: micro-batches need a model description, this is a finished step", mod.Name))
	}
	g := &graph{mod: mod, table: ops.Table(), name: mod.Name, dtype: dtype.F32, train: true, step: step, micros: 1,
		byName: map[string]*state{}, inputs: map[string]*Tensor{}}
	for _, f := range mod.Funcs {
		f.Body.Walk(func(op *ir.Op) {
			if op.Attrs.Get("rng") != nil {
				g.rng = max(g.rng, op.Attrs.Int("rng")+1)
			}
		})
	}
	loss := step.Result("loss")
	for i, name := range step.Results {
		if name == "loss" {
			continue
		}
		if p := step.Param(name); p != nil && p.Role() == ir.RoleParam {
			diag.Throw(diag.Errorf("model", "module %q is trained already: @step has a new value for %%%s", mod.Name, name))
		}
		g.outputs = append(g.outputs, output{name, step.Body.Results[i]})
	}
	for _, p := range step.Body.Params {
		if !p.IsState() {
			continue
		}
		st := &state{name: p.Name, layer: layerOf(p.Name), role: p.Role(), param: p, now: p, frozen: !p.Type.DType.IsFloat()}
		g.states = append(g.states, st)
		g.byName[p.Name] = st
	}
	s := &Scope{g, "", step}
	scale := r.Scale.start(s)
	s.optimize(r, s.gradients(scale.up(loss)), scale)
	g.finish(loss)
	return nil
}

// Losses are the names that AddLoss knows.
func Losses() []string { return []string{"cross_entropy", "mse", "l1", "bce"} }

// AddLoss gives the @step of a module a result "loss", computed from one of its results
// and a new input "targets". The module is changed in place: of its other results it keeps
// those that are state. loss is a name of Losses, or NAME:RESULT where @step has several results.
func AddLoss(mod *ir.Module, loss string) (err error) {
	defer diag.Catch(&err)
	name, from, named := strings.Cut(loss, ":")
	if !slices.Contains(Losses(), name) {
		diag.Throw(diag.Errorf("option", "no loss %q", name).WithHint("%s", exist("losses", name, Losses())))
	}
	step := mod.Func("step")
	if step == nil {
		diag.Throw(diag.Errorf("model", "module %q can't be trained: it has no @step", mod.Name))
	}
	if step.Result("loss") != nil {
		diag.Throw(diag.Errorf("model", "module %q has a loss already", mod.Name))
	}
	var plain []string
	for _, r := range step.Results {
		if p := step.Param(r); p == nil || !p.IsState() {
			plain = append(plain, r)
		}
	}
	if !named && len(plain) == 1 {
		from = plain[0]
	}
	if !slices.Contains(plain, from) {
		diag.Throw(diag.Errorf("option", "loss %q: say of which result, as %s:RESULT", loss, name).
			WithHint("results of @step: %s", strings.Join(plain, ", ")))
	}
	g := &graph{mod: mod, table: ops.Table(), name: mod.Name, dtype: dtype.F32, step: step, micros: 1, byName: map[string]*state{}, inputs: map[string]*Tensor{}}
	s := &Scope{g, "loss", step}
	x := step.Result(from)
	var v *Tensor
	switch y := x.Type; name {
	case "cross_entropy":
		if y.Rank() == 0 {
			s.fail("shape", "cross-entropy of %q, which is %v: want [..., classes]", from, y)
		}
		classes := y.Shape[y.Rank()-1]
		v = s.CrossEntropy(x, s.Input("targets", dtype.I32, y.Shape[:y.Rank()-1], Labels(classes)))
	case "mse":
		v = s.MSE(x, s.Input("targets", y.DType, y.Shape, Normal01))
	case "l1":
		v = s.L1(x, s.Input("targets", y.DType, y.Shape, Normal01))
	default:
		v = s.BinaryCrossEntropy(x, s.Input("targets", y.DType, y.Shape, Uniform01))
	}
	results, names := []*Tensor{s.Cast(v, dtype.F32)}, []string{"loss"}
	for i, r := range step.Results {
		if !slices.Contains(plain, r) {
			results, names = append(results, step.Body.Results[i]), append(names, r)
		}
	}
	step.Body.Results, step.Results = results, names
	step.Renumber()
	return nil
}

// layerOf is the path of a parameter's layer: its name without the last part.
func layerOf(name string) string {
	for i := len(name) - 1; i > 0; i-- {
		if name[i] == '.' {
			return name[:i]
		}
	}
	return name
}

func newGraph(m Model, train, source bool) *graph {
	d := m.DType
	switch d {
	case dtype.Invalid:
		d = dtype.F32
	case dtype.F32, dtype.BF16, dtype.F16:
	default:
		diag.Throw(diag.Errorf("option", "model %q of %s: want f32, bf16 or f16", m.Name, d))
	}
	mod := ir.NewModule(m.Name)
	return &graph{mod: mod, table: ops.Table(), name: m.Name, dtype: d, train: train, source: source, step: mod.NewFunc("step"),
		micros: 1, byName: map[string]*state{}, inputs: map[string]*Tensor{}}
}

// trained lists the parameters that have a gradient, in the order of their declaration.
func trained(g *graph) []*state {
	var out []*state
	for _, st := range g.states {
		if st.role == ir.RoleParam && !st.frozen {
			out = append(out, st)
		}
	}
	return out
}

// gradients adds the pseudo-operation that differentiation replaces.
func (s *Scope) gradients(loss *Tensor) []*Tensor {
	operands := []*Tensor{loss}
	for _, st := range trained(s.g) {
		operands = append(operands, st.param)
	}
	if len(operands) == 1 {
		s.fail("model", "there is nothing to train: no parameter was declared")
	}
	return s.Ops("gradient", operands)
}

// wide is x in f32 if it is of 16 bits.
func (s *Scope) wide(x *Tensor) *Tensor { return s.Cast(x, x.Type.DType.Accum()) }

// optimize clips the gradients and gives every trained parameter its new value.
//
// A parameter of bf16 or f16 has a master copy of f32 in the optimizer's state ("/master"),
// as in Megatron-LM and DeepSpeed: the optimizer steps that copy from the gradient in f32,
// and the parameter is the copy, rounded. So a step that is smaller than half a unit in the
// last place of the parameter is not lost.
func (s *Scope) optimize(r Recipe, grads []*Tensor, scale *lossScale) {
	if r.Optimizer == nil || r.Schedule == nil {
		s.fail("model", "a recipe needs an optimizer and a schedule")
	}
	if !(r.EMA >= 0 && r.EMA < 1) {
		s.fail("option", "decay %v of the parameters' moving average: want 0 ≤ decay < 1", r.EMA)
	}
	g := s.g
	weights := trained(g)
	opt := s.In("optimizer")
	step := g.step.Body.AddParam("step", ir.T(dtype.I64), ir.A("role", ir.RoleStep))
	sched := s.In("schedule")
	lr := sched.Cast(r.Schedule.Rate(sched, sched.Cast(step, dtype.F64)), dtype.F32)
	scale.down(grads)
	if r.Clip > 0 {
		clip := s.In("clip")
		by := clip.clipScale(grads, r.Clip)
		for i, gr := range grads {
			grads[i] = clip.Mul(clip.wide(gr), by)
		}
	}
	update := r.Optimizer.Start(opt, scale.steps(step), lr)
	// Last declared first: that is the order in which gradients become final, so that
	// without clipping each update can follow its gradient and free it.
	for i := len(weights) - 1; i >= 0; i-- {
		st := weights[i]
		w := &Weight{Scope: &Scope{g, st.layer, g.step}, Param: st.param, name: st.name}
		w.Grad = w.wide(grads[i])
		half := st.param.Type.DType != w.Grad.Type.DType
		if half {
			w.Param = w.Copy("master")
		}
		first := len(g.states)
		now := update(w)
		if r.EMA > 0 {
			ema := w.Copy("ema")
			w.SetSlot("ema", w.Op("fma", []*Tensor{ema, w.Full(ema.Type, r.EMA), w.Scale(now, 1-r.EMA)}))
		}
		for _, slot := range g.states[first:] {
			slot.now = scale.keep(w.Scope, slot.now, slot.param)
		}
		now = scale.keep(w.Scope, now, w.Param)
		if half {
			w.SetSlot("master", now)
			now = w.Cast(now, st.param.Type.DType)
		}
		st.now = now
	}
	scale.finish()
}

// clipScale is min(1, limit / (norm + 1e-6)), the norm being that of all gradients
// together; squares are summed per parameter, then over the parameters in order.
func (s *Scope) clipScale(grads []*Tensor, limit float64) *Tensor {
	var sum *Tensor
	for _, gr := range grads {
		part := s.SumAll(s.Square(s.Cast(gr, dtype.F32)))
		if sum == nil {
			sum = part
		} else {
			sum = s.Add(sum, part)
		}
	}
	norm := s.AddScalar(s.Sqrt(sum), 1e-6)
	return s.Min(s.Div(s.Const(dtype.F32, limit), norm), s.Const(dtype.F32, 1))
}

// Weight is what an optimizer sees of one parameter.
type Weight struct {
	*Scope
	Param, Grad *Tensor
	name        string
}

// Slot declares optimizer state for the weight, zero at first, of the weight's type.
func (w *Weight) Slot(name string) *Tensor { return w.slot(name, w.Param.Type, Zeros) }

// Copy declares optimizer state for the weight that starts as a copy of it, f32 where the
// weight has 16 bits.
func (w *Weight) Copy(name string) *Tensor {
	of := w.name
	return w.slot(name, w.Param.Type.With(w.Param.Type.DType.Accum()), func(s *Scope, t ir.Type) *Tensor {
		return s.Cast(s.fn.Result(of), t.DType)
	})
}

func (w *Weight) slot(name string, t ir.Type, init Init) *Tensor {
	full := w.name + "/" + name
	w.claim(full)
	st := &state{name: full, layer: w.layer(), role: ir.RoleOpt, init: init}
	st.param = w.fn.Body.AddParam(full, t, ir.A("role", ir.RoleOpt))
	st.now = st.param
	w.g.states = append(w.g.states, st)
	w.g.byName[full] = st
	return st.param
}

// SetSlot gives a slot its new value.
func (w *Weight) SetSlot(name string, v *Tensor) { w.g.byName[w.name+"/"+name].now = v }

// finish names the step's results, orders parameters and state by role, and writes @init.
func (g *graph) finish(loss *Tensor) *ir.Module {
	rank := func(role string) int {
		return slices.Index([]string{ir.RoleParam, ir.RoleOpt, ir.RoleBuffer, ir.RoleInput, ir.RoleKey, ir.RoleStep}, role)
	}
	body := g.step.Body
	if len(g.states) > 0 && !slices.ContainsFunc(body.Params, func(p *ir.Value) bool { return p.Role() == ir.RoleKey }) {
		// @init reads the key from where @step has it.
		body.AddParam("key", ir.T(dtype.Key), ir.A("role", ir.RoleKey))
	}
	slices.SortStableFunc(body.Params, func(a, b *ir.Value) int { return rank(a.Role()) - rank(b.Role()) })
	slices.SortStableFunc(g.states, func(a, b *state) int { return rank(a.role) - rank(b.role) })

	body.Results, g.step.Results = nil, nil
	result := func(name string, v *Tensor) {
		body.Results = append(body.Results, v)
		g.step.Results = append(g.step.Results, name)
	}
	if loss != nil {
		result("loss", loss)
	}
	for _, o := range g.outputs {
		result(o.name, o.v)
	}
	for _, m := range g.metrics {
		if g.micros > 1 {
			m.v = (&Scope{g, "metrics", g.step}).Scale(m.v, 1/float64(g.micros))
		}
		result(m.name, m.v)
	}
	for _, st := range g.states {
		if st.now != st.param {
			result(st.name, st.now)
		}
	}
	g.step.Renumber()
	g.writeInit()
	return g.mod
}

// writeInit writes or extends @init so that it gives all state; state without an
// initialiser must be given by it already.
func (g *graph) writeInit() {
	f := g.mod.Func("init")
	if f == nil {
		if len(g.states) == 0 {
			return
		}
		f = g.mod.NewFunc("init")
		f.Body.AddParam("key", ir.T(dtype.Key), ir.A("role", ir.RoleKey))
		// First, and what the step calls stays before it.
		n := len(g.mod.Funcs) - 1
		g.mod.Funcs = slices.Insert(g.mod.Funcs[:n:n], 0, f)
	}
	for _, st := range g.states {
		if st.init == nil {
			continue
		}
		s := &Scope{g, st.layer, f}
		v := st.init(s, st.param.Type)
		if !v.Type.Equal(st.param.Type) {
			s.fail("shape", "the initialiser of %q gives %v, want %v", st.name, v.Type, st.param.Type)
		}
		f.Body.Results = append(f.Body.Results, v)
		f.Results = append(f.Results, st.name)
	}
	f.Renumber()
}

func typeOf(v *Tensor) string {
	if v == nil {
		return "nothing"
	}
	return fmt.Sprint(v.Type)
}
