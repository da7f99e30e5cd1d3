package planner

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// A panic in one of the planner's goroutines comes out where the planner was called, with the place that
// it came from, after the others have ended.
func TestPanicInParallel(t *testing.T) {
	s := &search{opt: Options{Threads: 3}}
	var ran atomic.Int64
	defer func() {
		require.Regexp(t, `^BUG: it broke \(reprise/planner\.TestPanicInParallel\.func\d+, parallel_test\.go:\d+\)$`, recover())
		require.EqualValues(t, 5, ran.Load())
	}()
	s.parallel(6, func(k int) {
		if k == 4 {
			panic("BUG: it broke")
		}
		ran.Add(1)
	})
	t.Fatal("not reached")
}
