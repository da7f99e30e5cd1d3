package attnref

import (
	"encoding/binary"

	"reprise/ir/kern"
	"reprise/ir/kern/scalar"
)

// mask is the dropout of the probabilities of one call.
type mask struct {
	a     *kern.Attention
	key   scalar.Key
	below uint64
	inv   float32
}

func newMask(a *kern.Attention, key *[16]byte) mask {
	if a.Dropout == 0 {
		return mask{}
	}
	return mask{
		a: a,
		key: scalar.Key{
			Seed:  binary.LittleEndian.Uint64(key[:]),
			Step:  binary.LittleEndian.Uint32(key[8:]),
			Micro: binary.LittleEndian.Uint32(key[12:]),
		},
		below: scalar.DropBelow(float64(a.Dropout)),
		inv:   scalar.DropScale(float64(a.Dropout)),
	}
}

// apply drops or scales the value of element [b, h, i, j].
func (m mask) apply(x float32, b, h, i, j int64) float32 {
	if m.a == nil {
		return x
	}
	row := (b*m.a.Heads+h)*m.a.Tq + i
	if uint64(scalar.Random(m.key, m.a.RNG, row*scalar.RowBlocks(m.a.Tk), j)) < m.below {
		return 0
	}
	return x * m.inv
}
