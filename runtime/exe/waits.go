package exe

import "fmt"

// access is a range of bytes that an instruction since the last wait may touch.
type access struct {
	lo, hi int64
	write  bool
	single bool // by a launch of one tile, which is always the same worker's
	inst   int
}

// hazards walks a program as the driver does and keeps what may still be in
// flight. Constants are never written and do not matter.
type hazards struct {
	open []access
}

// conflict returns the index of an unfinished instruction that a must wait for,
// or −1: one of the two writes where the other reads or writes, and they are not
// both of one tile, hence in order on one worker.
func (h *hazards) conflict(a access) int {
	for _, b := range h.open {
		if (a.write || b.write) && a.lo < b.hi && b.lo < a.hi && !(a.single && b.single) {
			return b.inst
		}
	}
	return -1
}

func accesses(at int, in *Inst) []access {
	var as []access
	add := func(a Arg, single bool) {
		if !a.Const && a.Bytes > 0 {
			as = append(as, access{a.Offset, a.Offset + a.Bytes, a.Write, single, at})
		}
	}
	switch in.Kind {
	case Launch:
		if in.Tiles == 0 {
			return nil
		}
		for _, a := range in.Args {
			add(a, in.Tiles == 1)
		}
	case Print: // a launch of one tile
		for _, a := range in.Args {
			add(a, true)
		}
	case BranchIfFalse, Case, Check: // every worker reads the predicate
		p := in.Pred
		p.Write = false
		add(p, false)
	}
	return as
}

// joins marks the instructions that control may reach other than by falling
// through. What is in flight there depends on the way, so they wait.
func joins(prog []Inst) []bool {
	marks := make([]bool, len(prog)+1)
	for _, in := range prog {
		for _, t := range in.Targets {
			if t >= 0 && t <= len(prog) {
				marks[t] = true
			}
		}
	}
	return marks
}

// PlaceWaits sets Wait on each instruction that must wait for earlier ones,
// as late as possible, from the extents and directions of the arguments, and
// clears it elsewhere. The driver itself waits before and after a program.
func PlaceWaits(prog []Inst) {
	var h hazards
	marks := joins(prog)
	for i := range prog {
		in := &prog[i]
		as := accesses(i, in)
		in.Wait = marks[i]
		for _, a := range as {
			in.Wait = in.Wait || h.conflict(a) >= 0
		}
		if in.Wait {
			h.open = h.open[:0]
		}
		h.open = append(h.open, as...)
	}
}

// checkWaits reports the first instruction that lacks a wait it needs.
func checkWaits(prog []Inst) error {
	var h hazards
	marks := joins(prog)
	for i := range prog {
		in := &prog[i]
		if in.Wait {
			h.open = h.open[:0]
		} else if marks[i] {
			return fmt.Errorf("instruction %d is a jump's target and does not wait", i)
		}
		as := accesses(i, in)
		for _, a := range as {
			if b := h.conflict(a); b >= 0 {
				return fmt.Errorf("instruction %d (%s) touches bytes %d to %d of the arena without waiting for instruction %d (%s)", i, in.Symbol, a.lo, a.hi, b, prog[b].Symbol)
			}
		}
		h.open = append(h.open, as...)
	}
	return nil
}
