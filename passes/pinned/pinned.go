// Package pinned finds the ops that run once, whatever the budget and the policy: the
// pinned closure.
//
// It holds every op with an effect, every op of unfixed or unknown order (tol, unknown),
// every op whose row says that it decides (top-k, sorting of indices, histograms, argmax),
// and the decisions that no row can know: where floating-point values become integers or
// truth values that route, that is, reach an operand of ir.OpDef.Routes (the index of a
// gather, the counts of a grouped contraction, the predicate of an if) or end a loop. A
// mask that is used element by element is none of these, and costs nothing.
//
// What an exact op computes from kept values is not in the closure, even where it leads to
// a decision or comes from one: its second run has the first one's bits, because the order of
// arithmetic belongs to the op. The op of unfixed order before it runs once and all read
// that one result; the decision after it is kept and takes the place of any other at every
// use. So no second run of anything can reach a decision.
package pinned

import (
	"fmt"

	"reprise/ir"
)

// Kind says why an op is pinned.
type Kind uint8

// Kinds of pins.
const (
	Effect Kind = iota + 1 // it does something beside computing
	Order                  // its order of arithmetic is not fixed, or not known
	Choice                 // it decides, by its row or because its result routes
	Marked                 // the model says so
)

// Pin is the reason for which an op runs once.
type Pin struct {
	Kind Kind
	Why  string // a sentence's end: "…, so it runs once"
}

// Allowable reports whether a layer may be opted out of the pin: decisions, ops of unfixed order
// and collectives. What writes, reads hidden state or calls the host runs once in any case.
func (p Pin) Allowable(op *ir.Op) bool {
	e := op.Effect()
	return e == ir.EffectNone || e == ir.EffectComm
}

// Of gives the pinned ops of a function's body, with reasons. Ops with regions are pinned whole.
func Of(b *ir.Block) map[*ir.Op]Pin {
	pins := map[*ir.Op]Pin{}
	decided := Decisions(b)
	for _, op := range b.Ops {
		if p, ok := Own(op); ok {
			pins[op] = p
		} else if o := decided[op]; o != nil {
			what := o.Name()
			if o != op {
				what = fmt.Sprintf("%s in it", what)
			}
			pins[op] = Pin{Choice, "its result routes (" + what + "): a decision is made once"}
		}
	}
	return pins
}

// Own is the pin that an op has by its row.
func Own(op *ir.Op) (Pin, bool) {
	switch e, d := op.Effect(), op.Det(); {
	case e == ir.EffectComm:
		return Pin{Effect, "it is a collective, in which all participants take part equally often and in one order"}, true
	case e != ir.EffectNone:
		return Pin{Effect, fmt.Sprintf("it has an effect (%s), which happens exactly once", e)}, true
	case d == ir.Decides:
		return Pin{Choice, "it decides: made once, so that nothing can be routed differently the second time"}, true
	case d == ir.Tol:
		return Pin{Order, "its order of arithmetic is not fixed: a second run could give other bits"}, true
	case d == ir.Unknown:
		return Pin{Order, "nothing is known of its determinism: a second run could give other bits"}, true
	}
	return Pin{}, false
}

// Decisions gives the ops of a block that decide because of what their results are used
// for, and for each the innermost op that does (itself, or one in its regions).
func Decisions(b *ir.Block) map[*ir.Op]*ir.Op {
	s := &scan{found: map[*ir.Op]*ir.Op{}}
	s.block(b, make([]bool, len(b.Results)))
	return s.found
}

// scan is one analysis; found has ops of all levels.
type scan struct{ found map[*ir.Op]*ir.Op }

// block marks what routes, from the last op to the first: routed tells which of the
// block's results do. It reports which of its parameters do, and an op that decides.
func (s *scan) block(b *ir.Block, routed []bool) (params []bool, decides *ir.Op) {
	marked := map[*ir.Value]bool{}
	for i, v := range b.Results {
		if routed[i] {
			marked[v] = true
		}
	}
	for i := len(b.Ops) - 1; i >= 0; i-- {
		op := b.Ops[i]
		if op.Def.Routes != nil {
			for _, k := range op.Def.Routes(op) {
				marked[op.Operands[k]] = true
			}
		}
		results := make([]bool, len(op.Results))
		any := false
		for k, r := range op.Results {
			results[k] = marked[r]
			any = any || results[k]
		}
		var d *ir.Op
		switch {
		case op.Name() == "while":
			d = s.loop(op, results, marked)
		case len(op.Regions) > 0:
			first := len(op.Operands) - len(op.Regions[0].Params) // if and case: behind the predicate
			for _, r := range op.Regions {
				inner, o := s.block(r, results[:min(len(results), len(r.Results))])
				if o != nil {
					d = o
				}
				for k, yes := range inner {
					if at := first + k; yes && at >= 0 && at < len(op.Operands) {
						marked[op.Operands[at]] = true
					}
				}
			}
		case any && isCopy(op):
			for k := range op.Results {
				if results[k] {
					marked[op.Operands[k]] = true
				}
			}
		case any && op.Det() <= ir.Keyed:
			if discretizes(op) {
				d = op
				break
			}
			for _, v := range op.Operands {
				marked[v] = true
			}
		}
		if d != nil {
			s.found[op] = d
			decides = d
		}
	}
	params = make([]bool, len(b.Params))
	for i, p := range b.Params {
		params[i] = marked[p]
	}
	return params, decides
}

// loop is block for a while: what a turn carries on may route in the next one.
func (s *scan) loop(op *ir.Op, results []bool, marked map[*ir.Value]bool) (decides *ir.Op) {
	carried := results
	for {
		end, d := s.block(op.Regions[0], []bool{true})
		turn, e := s.block(op.Regions[1], carried)
		if decides = d; d == nil {
			decides = e
		}
		next, grew := make([]bool, len(carried)), false
		for i := range carried {
			next[i] = carried[i] || end[i] || turn[i]
			grew = grew || next[i] != carried[i]
		}
		carried = next
		if !grew {
			break
		}
	}
	for i, yes := range carried {
		if yes {
			marked[op.Operands[i]] = true
		}
	}
	return decides
}

// isCopy: results are the operands, one by one.
func isCopy(op *ir.Op) bool {
	switch op.Name() {
	case "stop_gradient", "optimization_barrier", "copy":
		return len(op.Results) == len(op.Operands)
	}
	return false
}

// discretizes: op makes integers or truth values of floating-point numbers.
func discretizes(op *ir.Op) bool {
	in, out := false, false
	for _, v := range op.Operands {
		in = in || v.Type.DType.IsFloat()
	}
	for _, v := range op.Results {
		out = out || !v.Type.DType.IsFloat()
	}
	return in && out
}
