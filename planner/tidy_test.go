package planner

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestTidy: an instance whose result is made again before anything reads it goes, and what only it read goes too.
func TestTidy(t *testing.T) {
	p := &Problem{
		Values: []Value{{Resident: true}, {Bytes: 1}, {Bytes: 1}, {Bytes: 1, Output: true}},
		Ops: []Op{
			{Inputs: []int{0}, Outputs: []int{1}, Det: DetExact},
			{Inputs: []int{1}, Outputs: []int{2}, Det: DetExact},
			{Inputs: []int{2}, Outputs: []int{3}, Det: DetExact},
		},
	}
	assert.Equal(t, []int{0, 1, 2}, tidy(p, []int{0, 1, 0, 1, 2}))
	assert.Equal(t, []int{0, 1, 2}, tidy(p, []int{0, 1, 2, 0}))
	assert.Equal(t, []int{0, 1, 2}, tidy(p, []int{0, 1, 2}))
}
