"""cuda-bindings on a machine whose driver may not start: prints what cuInit gives, twice."""

from cuda.bindings import driver

for _ in range(2):
    (code,) = driver.cuInit(0)
    print(code.name, *driver.cuGetErrorString(code))
print(*driver.cuDriverGetVersion())
