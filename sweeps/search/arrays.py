"""Names for the types of NumPy's arrays, for annotations."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
