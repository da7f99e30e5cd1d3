// Package buffer gives every value of a scheduled block its place: offsets in one frame,
// with views, reuse in place and workspaces. Frames of control-flow regions lie inside the
// workspace of their op.
package buffer

import (
	"fmt"
	"slices"
	"time"

	"reprise/ir"
	"reprise/passes/lower"
	"reprise/passes/remat"
	"reprise/planner/pack"
)

// Options of a layout.
type Options struct {
	// Lowered is the lowering of an op that is neither view, constant nor control flow.
	Lowered func(op *ir.Op) (*lower.Lowered, error)
	// Workspace is what an op needs beyond its lowering's workspaces, in bytes.
	Workspace func(op *ir.Op, l *lower.Lowered) int64
	// Updates lists, for an op, the (operand, result) pairs that overwrite a parameter of the
	// block (the old value of a state).
	Updates map[*ir.Op][][2]int
	// External names values that live outside the frame by themselves: the initial values of
	// states, which are made where they will stay.
	External map[*ir.Value]string
	// Checked is told how long each check of a layout took; nil: nobody is.
	Checked func(time.Duration)
	// Room is the number of bytes that a frame may take: one that fits is not made smaller. 0 asks for the
	// smallest.
	Room int64
	// Quick looks for a small frame with a tenth of the work.
	Quick bool
}

// searchSteps is how many placements the search for a small frame may try. One takes a time that grows with the
// number of blocks; so many are a second or two.
func searchSteps(blocks int) int64 {
	n := int64(max(blocks, 1))
	return min(500_000, 40_000_000_000/(n*n))
}

// Home is where a value lives: in the memory of a parameter of its block, in a dense
// constant, outside by a name, or at an offset of its block's frame.
type Home struct {
	Param    *ir.Value
	Const    *ir.Op
	External string
	Offset   int64
}

// Stretch is one stretch of a frame, for reports.
type Stretch struct {
	Value         *ir.Value // the first value that lives in it; nil for a workspace
	Op            *ir.Op    // the op that opens it
	Start, End    int       // positions in the block's ops, inclusive
	Offset, Bytes int64
}

// Frame is the layout of a block.
type Frame struct {
	Homes     map[*ir.Value]Home
	Work      map[*ir.Op][]int64  // offsets of the workspaces of an op's lowering, then of the extra one
	Regions   map[*ir.Op][]*Frame // by control-flow op; they share the memory at RegionAt
	RegionAt  map[*ir.Op]int64
	Size      int64 // bytes
	Live      int64 // the most bytes in use at one time: no layout is smaller
	Stretches []Stretch
}

// IsControl reports whether op is control flow with regions to lay out.
func IsControl(op *ir.Op) bool {
	switch op.Name() {
	case "while", "if", "case":
		return true
	}
	return false
}

// Layout lays out a block. Its parameters are elsewhere and are only overwritten where
// opt.Updates says so.
func Layout(b *ir.Block, opt Options) (*Frame, error) {
	f := &Frame{Homes: map[*ir.Value]Home{}, Work: map[*ir.Op][]int64{}, Regions: map[*ir.Op][]*Frame{}, RegionAt: map[*ir.Op]int64{}}
	last := lastUses(b)
	item := map[*ir.Value]int{} // value → stretch
	end := []int{}
	var works []struct {
		op     *ir.Op
		k      int
		region bool
		s      int
	}
	open := func(v *ir.Value, op *ir.Op, pos int, bytes int64) int {
		f.Stretches = append(f.Stretches, Stretch{Value: v, Op: op, Start: pos, End: pos, Bytes: remat.RoundUp(bytes)})
		end = append(end, pos)
		return len(end) - 1
	}
	for _, p := range b.Params {
		f.Homes[p] = Home{Param: p}
	}
	for pos, op := range b.Ops {
		if lower.IsConstant(op) {
			f.Homes[op.Results[0]] = Home{Const: op}
			continue
		}
		if lower.IsView(op) {
			for i, r := range op.Results {
				src := op.Operands[i]
				if s, ok := item[src]; ok {
					item[r] = s
					end[s] = max(end[s], last[r])
				} else {
					f.Homes[r] = f.Homes[src]
				}
			}
			continue
		}
		if IsControl(op) {
			frames, size, err := regions(op, opt)
			if err != nil {
				return nil, err
			}
			f.Regions[op] = frames
			s := open(nil, op, pos, size)
			works = append(works, struct {
				op     *ir.Op
				k      int
				region bool
				s      int
			}{op, 0, true, s})
			for _, r := range op.Results {
				item[r] = open(r, op, pos, r.Type.Bytes())
				end[item[r]] = max(pos, last[r])
			}
			continue
		}
		l, err := opt.Lowered(op)
		if err != nil {
			return nil, err
		}
		sizes := slices.Clone(l.Workspaces)
		if extra := opt.Workspace(op, l); extra > 0 {
			sizes = append(sizes, extra)
		}
		f.Work[op] = make([]int64, len(sizes))
		for k, n := range sizes {
			works = append(works, struct {
				op     *ir.Op
				k      int
				region bool
				s      int
			}{op, k, false, open(nil, op, pos, n)})
		}
		for _, r := range op.Results {
			if name := opt.External[r]; name != "" {
				f.Homes[r] = Home{External: name}
			}
		}
		for _, pr := range opt.Updates[op] {
			f.Homes[op.Results[pr[1]]] = f.Homes[op.Operands[pr[0]]]
		}
		taken := map[int]bool{}
		for i, r := range op.Results {
			if _, ok := f.Homes[r]; ok {
				continue
			}
			for _, pr := range l.InPlace {
				if pr[1] != i {
					continue
				}
				s, ok := item[op.Operands[pr[0]]]
				if !ok || taken[s] || end[s] != pos || f.Stretches[s].Bytes != remat.RoundUp(r.Type.Bytes()) || sharedOperand(op, l, item, s, i) {
					continue
				}
				taken[s] = true
				item[r] = s
				end[s] = max(pos, last[r])
				break
			}
			if _, ok := item[r]; !ok {
				item[r] = open(r, op, pos, r.Type.Bytes())
				end[item[r]] = max(pos, last[r])
			}
		}
	}
	items := make([]pack.Item, len(f.Stretches))
	for i := range f.Stretches {
		s := &f.Stretches[i]
		s.End = end[i]
		items[i] = pack.Item{Start: s.Start, End: s.End, Size: s.Bytes, Align: remat.Align}
	}
	steps := searchSteps(len(items))
	if opt.Quick {
		steps /= 10
	}
	res, err := pack.Search(items, pack.Options{Steps: steps, Room: opt.Room})
	if err != nil {
		return nil, err
	}
	start := time.Now()
	err = pack.Verify(items, res.Offsets, res.Arena)
	if opt.Checked != nil {
		opt.Checked(time.Since(start))
	}
	if err != nil {
		return nil, fmt.Errorf("BUG: %w", err)
	}
	f.Size, f.Live = remat.RoundUp(res.Arena), pack.LowerBound(items)
	for i := range f.Stretches {
		f.Stretches[i].Offset = res.Offsets[i]
	}
	for v, s := range item {
		f.Homes[v] = Home{Offset: res.Offsets[s]}
	}
	for _, w := range works {
		if w.region {
			f.RegionAt[w.op] = res.Offsets[w.s]
		} else {
			f.Work[w.op][w.k] = res.Offsets[w.s]
		}
	}
	return f, nil
}

// sharedOperand: stretch s is also read through an operand that result i may not overwrite.
func sharedOperand(op *ir.Op, l *lower.Lowered, item map[*ir.Value]int, s, i int) bool {
	for j, v := range op.Operands {
		if t, ok := item[v]; ok && t == s && !slices.Contains(l.InPlace, [2]int{j, i}) {
			return true
		}
	}
	return false
}

// lastUses is the position at which each value is read for the last time, through views;
// the block's length for its results.
func lastUses(b *ir.Block) map[*ir.Value]int {
	last := map[*ir.Value]int{}
	for _, v := range b.Results {
		last[v] = len(b.Ops)
	}
	for pos := len(b.Ops) - 1; pos >= 0; pos-- {
		op := b.Ops[pos]
		view := lower.IsView(op)
		for i, v := range op.Operands {
			last[v] = max(last[v], pos)
			if view {
				last[v] = max(last[v], last[op.Results[i]])
			}
		}
	}
	return last
}

// regions lays out the regions of a control-flow op and gives the memory they share.
func regions(op *ir.Op, opt Options) (frames []*Frame, size int64, err error) {
	opt.Room = 0
	for _, r := range op.Regions {
		f, err := Layout(r, opt)
		if err != nil {
			return nil, 0, err
		}
		frames = append(frames, f)
		size = max(size, f.Size)
	}
	if op.Name() == "while" {
		// Room for carried values that trade places.
		for _, v := range op.Results {
			size += remat.RoundUp(v.Type.Bytes())
		}
	}
	return frames, size, nil
}

// RegionBytes is the memory that the regions of a control-flow op need.
func RegionBytes(op *ir.Op, opt Options) (int64, error) {
	_, size, err := regions(op, opt)
	return size, err
}
