package cpu

import (
	"encoding/binary"
	"slices"

	"github.com/llir/llvm/ir"
	"github.com/llir/llvm/ir/types"
	"github.com/llir/llvm/ir/value"

	"reprise/codegen/emit"
	"reprise/ir/kern"
)

// Kernels of one shape share their code. What one has of its own, the ids of its random ops and numbers in which
// it differs from the others, its code reads from a list in memory, which is one more argument behind those of the
// kernel: 8 bytes for each, the value in the lower ones.

// ownBytes is the list of a kernel.
func ownBytes(o kern.Own) []byte {
	var b []byte
	for _, id := range o.IDs {
		b = binary.LittleEndian.AppendUint64(b, uint64(id))
	}
	for _, x := range o.Numbers {
		b = binary.LittleEndian.AppendUint64(b, x.Bits)
	}
	return b
}

// owned are the values of a kernel's list in its code.
type owned struct {
	ids     map[uint32]value.Value // i32
	numbers map[*kern.Expr]value.Value
}

// readOwn reads the list, argument number at, at the end of entry, before anything is written.
func readOwn(entry *ir.Block, args value.Value, at int, o kern.Own) owned {
	v := owned{map[uint32]value.Value{}, map[*kern.Expr]value.Value{}}
	if len(o.IDs)+len(o.Numbers) == 0 {
		return v
	}
	i8p := types.NewPointer(types.I8)
	list := entry.NewLoad(i8p, entry.NewGetElementPtr(i8p, entry.NewBitCast(args, types.NewPointer(i8p)), emit.I64(int64(at))))
	n := 0
	next := func(t types.Type) value.Value {
		p := entry.NewBitCast(entry.NewGetElementPtr(types.I8, list, emit.I64(int64(8*n))), types.NewPointer(t))
		n++
		l := entry.NewLoad(t, p)
		l.Align = 8
		return l
	}
	for _, id := range o.IDs {
		v.ids[id] = next(types.I32)
	}
	for _, x := range o.Numbers {
		v.numbers[x] = next(emit.Type(x.DType, 1))
	}
	return v
}

// give lets the code of f have them.
func (v owned) give(f *emit.Func) { f.RandomIDs, f.Numbers = v.ids, v.numbers }

// shape is the code of the kernels of one shape: one function for those that have the numbers of the first, which
// are in its code, and one for all others, which reads the numbers in which any has differed so far.
type shape struct {
	first         []uint64
	differ        []bool
	common, other *function // nil: not needed yet
}

// function is compiled code as it is launched, but for the lists: not at all where there is nothing to compute.
type function struct{ launches []Launch }

// choose says which function a kernel takes, whether that has yet to be made, and what it reads from the list.
func (s *shape) choose(own kern.Own) (f **function, missing bool, reads kern.Own) {
	reads.IDs = own.IDs
	if s.first == nil {
		s.first, s.differ = bitsOf(own.Numbers), make([]bool, len(own.Numbers))
	}
	if slices.Equal(s.first, bitsOf(own.Numbers)) {
		return &s.common, s.common == nil, reads
	}
	missing = s.other == nil
	for i, x := range own.Numbers {
		if x.Bits != s.first[i] && !s.differ[i] {
			s.differ[i], missing = true, true
		}
		if s.differ[i] {
			reads.Numbers = append(reads.Numbers, x)
		}
	}
	return &s.other, missing, reads
}

func bitsOf(numbers []*kern.Expr) []uint64 {
	bits := make([]uint64, len(numbers))
	for i, x := range numbers {
		bits[i] = x.Bits
	}
	return bits
}
