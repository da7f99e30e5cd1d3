package compile

import (
	"reprise/internal/diag"
	"reprise/ir"
	"reprise/ir/ops"
	"reprise/passes/buffer"
	"reprise/passes/lower"
)

// ownResults gives a copy of its own to each result of @step that would otherwise be read where something
// else is by then: the old value of a state that gets a new one, or a constant of the program.
func ownResults(step *ir.Func) (err error) {
	defer diag.Catch(&err)
	written := map[*ir.Value]bool{}
	params := step.ParamsByName()
	for i, name := range step.Results {
		if p := params[name]; p != nil && p.IsState() && root(step.Body.Results[i]) != p {
			written[p] = true
		}
	}
	t := ops.Table()
	for i, name := range step.Results {
		v := step.Body.Results[i]
		r := root(v)
		p := params[name]
		state := p != nil && p.IsState()
		if !(written[r] && r != p || r.Op != nil && lower.IsConstant(r.Op) && !state) {
			continue
		}
		loc := ir.Loc{Layer: layerOf(v)}
		start := make([]int64, v.Type.Rank())
		step.Body.Results[i] = ir.NewBuilder(t, step.Body, loc).Op("slice", []*ir.Value{v}, ir.A("start", start), ir.A("limit", v.Type.Shape))
	}
	return nil
}

// root is the value whose memory v is: v itself, or what it is a view of.
func root(v *ir.Value) *ir.Value {
	for v.Op != nil && lower.IsView(v.Op) {
		v = v.Op.Operands[v.Index]
	}
	return v
}

// layoutInit lays out @init. The initial values of states are made where they will stay.
func layoutInit(f *ir.Func, isState func(name string) bool) (*buffer.Frame, func(*ir.Op) (*lower.Lowered, error), error) {
	external := map[*ir.Value]string{}
	for i, name := range f.Results {
		v := root(f.Body.Results[i])
		if v.Op == nil || lower.IsConstant(v.Op) || buffer.IsControl(v.Op) || external[v] != "" {
			continue
		}
		if !isState(name) {
			return nil, nil, diag.Errorf("model", "@init makes %q, which is no state of @step", name)
		}
		external[v] = name
	}
	low := lowerings(map[*ir.Op]*lower.Lowered{})
	frame, err := buffer.Layout(f.Body, buffer.Options{Lowered: low, Workspace: noWorkspace, External: external})
	return frame, low, err
}

// initBytes is the arena that @init takes, 0 where there is none.
func initBytes(m *ir.Module) (int64, error) {
	init, step := m.Func("init"), m.Func("step")
	if init == nil {
		return 0, nil
	}
	params := step.ParamsByName()
	frame, _, err := layoutInit(init, func(name string) bool { p := params[name]; return p != nil && p.IsState() })
	if err != nil {
		return 0, err
	}
	_, _, resident := residents(step)
	return resident + frame.Size, nil
}
