package exe

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// A tool that crashes says why before or behind its stack: the reason is kept, the stack is not.
func TestStackOfAToolIsLeftOut(t *testing.T) {
	said := "warning: unused\nPLEASE submit a bug report to https://x and include the backtrace.\nLLVM ERROR: No space left on device\n" +
		"Stack dump:\n0.\tProgram arguments: ld.lld -o out\n #0 0x00007fd2700b73c6 llvm::sys::PrintStackTrace\n"
	assert.Equal(t, "warning: unused\nLLVM ERROR: No space left on device", withoutStack(said))
}
