package cpu

import (
	"crypto/sha256"
	"slices"
	"strings"

	"github.com/llir/llvm/ir"
	"github.com/llir/llvm/ir/enum"
)

// What one run of clang compiles is put together once all kernels are known. It goes by their names, which
// hold a hash of what they are, and not by the order in which a program asks for them: programs that have
// most kernels in common, as those of one model at several budgets, have most modules in common, and
// Objects compiles those once.

// part is a kernel, with functions of its own.
type part struct {
	name string
	m    *ir.Module
}

// part starts the part of a kernel. Functions that kernels share are there already, to be called.
func (u *Unit) part(name string) *part {
	p := &part{name, ir.NewModule()}
	p.m.Funcs = slices.Clone(u.helpers)
	return p
}

// keep takes a part that has been written into the unit.
func (u *Unit) keep(p *part) {
	u.parts = append(u.parts, p)
	for _, f := range p.m.Funcs {
		if isHelper(f) && !slices.Contains(u.helpers, f) {
			u.helpers = append(u.helpers, f)
		}
	}
}

// isHelper reports whether kernels share a function: it is compiled once, wherever it is called from.
func isHelper(f *ir.Func) bool { return f.Linkage == enum.LinkageWeakODR && len(f.Blocks) > 0 }

// A module is full with fullWeight instructions, and may end from leastWeight on: large enough that clang's start
// does not count, small enough for several cores.
const (
	leastWeight = 1500
	fullWeight  = 4500
)

// endOdds: one part in so many ends a module that may end. It depends on the part alone, so that modules after a
// part that another program does not have are the same ones again.
const endOdds = 2

// joined are the modules that runs of clang compile.
func (u *Unit) joined() []*ir.Module {
	var helpers []*part
	for _, f := range u.helpers {
		helpers = append(helpers, &part{f.Name(), &ir.Module{Funcs: []*ir.Func{f}}})
	}
	return append(joined(u.parts), joined(helpers)...)
}

func joined(parts []*part) []*ir.Module {
	parts = slices.Clone(parts)
	slices.SortFunc(parts, func(a, b *part) int { return strings.Compare(a.name, b.name) })
	var out []*ir.Module
	var open []*part
	weight := 0
	for i, p := range parts {
		open = append(open, p)
		for _, f := range p.m.Funcs {
			if p.has(f) {
				weight += instructions(f)
			}
		}
		if i == len(parts)-1 || weight >= fullWeight || weight >= leastWeight && sha256.Sum256([]byte(p.name))[0]%endOdds == 0 {
			out = append(out, join(open))
			open, weight = nil, 0
		}
	}
	return out
}

// has reports whether p is where f is compiled.
func (p *part) has(f *ir.Func) bool {
	return len(f.Blocks) > 0 && (!isHelper(f) || f.Name() == p.name)
}

// join makes the module of some parts, which declares what it calls of others.
func join(parts []*part) *ir.Module {
	m := ir.NewModule()
	m.SourceFilename = "kernels"
	m.TargetTriple = "x86_64-pc-linux-gnu"
	has := map[string]bool{}
	for _, p := range parts {
		m.Globals = append(m.Globals, p.m.Globals...)
		funcs := slices.Clone(p.m.Funcs)
		slices.SortStableFunc(funcs, func(a, b *ir.Func) int { return strings.Compare(a.Name(), b.Name()) })
		for _, f := range funcs {
			// Functions of one name in two parts are the same function.
			if p.has(f) && !has[f.Name()] {
				has[f.Name()] = true
				m.Funcs = append(m.Funcs, f)
			}
		}
	}
	for _, f := range m.Funcs { // of those that are defined
		for _, b := range f.Blocks {
			for _, inst := range b.Insts {
				call, ok := inst.(*ir.InstCall)
				if !ok {
					continue
				}
				if to, ok := call.Callee.(*ir.Func); ok && !has[to.Name()] {
					has[to.Name()] = true
					m.Funcs = append(m.Funcs, declaration(to))
				}
			}
		}
	}
	return m
}

// declaration is f without its body. Modules are printed at the same time, and printing numbers the
// parameters, so they share none.
func declaration(f *ir.Func) *ir.Func {
	params := make([]*ir.Param, len(f.Params))
	for i, p := range f.Params {
		params[i] = ir.NewParam("", p.Typ)
		params[i].Attrs = p.Attrs
	}
	d := ir.NewFunc(f.Name(), f.Sig.RetType, params...)
	d.Sig, d.Visibility, d.FuncAttrs, d.ReturnAttrs = f.Sig, f.Visibility, f.FuncAttrs, f.ReturnAttrs
	return d
}

func instructions(f *ir.Func) int {
	n := 0
	for _, b := range f.Blocks {
		n += len(b.Insts) + 1
	}
	return n
}
