package fuzz

import (
	"slices"

	"reprise/ir"
	"reprise/passes/dce"
)

// Minimise makes m smaller for as long as fails holds: fewer results, fewer ops, at most tries times. It
// cuts a value off from what it is made of by making it an input.
func Minimise(m *ir.Module, tries int, fails func(m *ir.Module) bool) *ir.Module {
	m = m.Clone()
	attempt := func(change func(m *ir.Module) bool) bool {
		if tries <= 0 {
			return false
		}
		c := m.Clone()
		if !change(c) {
			return false
		}
		tidy(c)
		if ir.Verify(c) != nil || len(c.Func("step").Results) == 0 {
			return false
		}
		tries--
		if !fails(c) {
			return false
		}
		m = c
		return true
	}
	for changed := true; changed && tries > 0; {
		changed = false
		for i := len(m.Func("step").Results) - 1; i >= 0; i-- {
			changed = attempt(func(m *ir.Module) bool {
				f := m.Func("step")
				if i >= len(f.Results) {
					return false
				}
				f.Results, f.Body.Results = slices.Delete(f.Results, i, i+1), slices.Delete(f.Body.Results, i, i+1)
				return true
			}) || changed
		}
		for i := len(m.Func("step").Body.Ops) - 1; i >= 0; i-- {
			for _, way := range []func(f *ir.Func, op *ir.Op) bool{bypass, cut} {
				done := attempt(func(m *ir.Module) bool {
					f := m.Func("step")
					return i < len(f.Body.Ops) && way(f, f.Body.Ops[i])
				})
				changed = changed || done
				if done {
					break
				}
			}
		}
	}
	return m
}

// replace makes every reader in f's body read to instead of from.
func replace(f *ir.Func, from, to *ir.Value) {
	for _, op := range f.Body.Ops {
		for i, v := range op.Operands {
			if v == from {
				op.Operands[i] = to
			}
		}
	}
	for i, v := range f.Body.Results {
		if v == from {
			f.Body.Results[i] = to
		}
	}
}

// bypass puts an operand in the place of op's result.
func bypass(f *ir.Func, op *ir.Op) bool {
	if len(op.Results) != 1 {
		return false
	}
	for _, v := range op.Operands {
		if v.Type.Equal(op.Out(0)) {
			replace(f, op.Results[0], v)
			return true
		}
	}
	return false
}

// cut makes op's results inputs.
func cut(f *ir.Func, op *ir.Op) bool {
	if len(op.Operands) == 0 {
		return false
	}
	for _, r := range op.Results {
		if r.Type.DType.Size() > 8 {
			return false
		}
		feed := ""
		if r.Type.DType.IsInt() {
			feed = "uniform_int:7"
		}
		replace(f, r, f.Body.AddParam("in"+r.Name, r.Type, ir.A("role", ir.RoleInput), ir.A("feed", feed)))
	}
	return true
}

// tidy drops what nothing needs: ops, inputs, states.
func tidy(m *ir.Module) {
	f := m.Func("step")
	dce.Run(m)
	uses := f.Uses()
	keep := f.Body.Params[:0]
	for _, p := range f.Body.Params {
		init := m.Func("init")
		if uses[p.ID] > 0 || p.IsState() && f.Result(p.Name) != nil || p.Role() == ir.RoleKey {
			keep = append(keep, p)
			continue
		}
		if p.IsState() && init != nil {
			if i := slices.Index(init.Results, p.Name); i >= 0 {
				init.Results, init.Body.Results = slices.Delete(init.Results, i, i+1), slices.Delete(init.Body.Results, i, i+1)
			}
		}
	}
	f.Body.Params = keep
	dce.Run(m)
	f.Renumber()
}
